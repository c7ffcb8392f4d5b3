"""Servers with the same token have the same authorities, as k3s's share theirs; others do not."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from bedk3s import authorities, certificates, flags, settings, token
from bedk3s.layout import Layout


def test_the_same_token_gives_the_same_certificate_to_the_byte() -> None:
    assert authorities.authority("t", "server-ca").pem == authorities.authority("t", "server-ca").pem


def test_another_token_or_another_purpose_gives_another_key() -> None:
    made = [("t", "server-ca"), ("u", "server-ca"), ("t", "client-ca")]
    assert len({authorities.authority(*one).key.public_key().public_bytes_raw() for one in made}) == 3


def test_the_service_account_key_is_shared_and_on_p256() -> None:
    one, two = (authorities.shared_key("t", "service account") for _ in range(2))
    assert one.private_numbers() == two.private_numbers()
    assert isinstance(one.curve, ec.SECP256R1)
    assert b"BEGIN EC PRIVATE KEY" in authorities.key_pem(one)


def test_an_authority_is_valid_whatever_the_clock_of_a_test_machine_says() -> None:
    certificate = authorities.authority("t", "server-ca").certificate
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    assert begin < datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    assert end > datetime.datetime(2040, 1, 1, tzinfo=datetime.UTC)


def issue(path: Path, *sans: str) -> x509.Certificate:
    certificates.issue(path, authorities.authority("t", "server-ca"), "one", ["group"], sans)
    return x509.load_pem_x509_certificate(path.with_suffix(".crt").read_bytes())


def test_a_fitting_certificate_is_kept_and_one_for_another_address_is_not(tmp_path: Path) -> None:
    first = issue(tmp_path / "a", "10.0.0.1", "name")
    assert issue(tmp_path / "a", "10.0.0.1", "name") == first
    assert issue(tmp_path / "a", "10.0.0.2", "name") != first


def test_a_certificate_is_signed_by_its_authority_and_names_user_and_group(tmp_path: Path) -> None:
    made = issue(tmp_path / "a", "10.0.0.1")
    made.verify_directly_issued_by(authorities.authority("t", "server-ca").certificate)
    assert made.subject.rfc4514_string() == "CN=one,O=group"


def test_tokens_in_both_forms_hold_the_same_secret(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.server.mkdir()
    token.keep("secret", b"pem", layout)
    long = (layout.server / "token").read_text().strip()
    assert long.startswith("K10") and long.endswith("::server:secret")
    assert token.secret(long) == token.secret("secret") == "secret"
    assert (layout.server / "node-token").read_text().strip() == long
    assert token.obtain("", layout) == "secret", "a restart without the flag keeps its token"
    assert token.pin(long) and not token.pin("secret")


def test_the_kubeconfig_follows_the_level_and_has_the_asked_mode(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("bedk3s.layout.RUN", tmp_path / "run")
    for arguments, port in ([], 6443), (["--disable-apiserver"], 6444):
        common = ["--data-dir", str(tmp_path / "data"), "--write-kubeconfig", str(tmp_path / "k3s.yaml")]
        made = settings.from_values(flags.parse([*common, "--node-ip", "10.0.0.1", *arguments]), {}, "host")
        layout = Layout(made.data_dir)
        layout.create()
        certificates.create(made, "t", layout)
        assert f"server: https://127.0.0.1:{port}\n" in (tmp_path / "k3s.yaml").read_text()
        assert (tmp_path / "k3s.yaml").stat().st_mode & 0o777 == 0o600
