"""The certificates, keys and kubeconfigs of one server, in k3s's places under server/tls and server/cred.

A certificate that still fits its server is kept over restarts, so that a copied k3s.yaml stays the same.
Authorities come from authorities.py; who uses which file is components.py's business.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .authorities import NOT_AFTER, NOT_BEFORE, Authority, authority, key_pem, shared_key
from .layout import Layout, write
from .settings import Settings


def _names(texts: Iterable[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for text in dict.fromkeys(texts):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(text)))
        except ValueError:
            names.append(x509.DNSName(text))
    return names


def _fits(path: Path, issuer: Authority, subject: x509.Name, names: list[x509.GeneralName]) -> bool:
    """Whether a kept certificate is still the one wanted."""
    try:
        kept = x509.load_pem_x509_certificate(path.with_suffix(".crt").read_bytes())
        serialization.load_pem_private_key(path.with_suffix(".key").read_bytes(), None)
        issuer.key.public_key().verify(kept.signature, kept.tbs_certificate_bytes)
        found: list[x509.GeneralName] = []
        if names:
            found = list(kept.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except Exception:  # whatever is wrong with it, a new one is made
        return False
    return kept.subject == subject and found == names


def issue(
    path: Path, issuer: Authority, name: str, groups: Iterable[str] = (), sans: Iterable[str] = ()
) -> None:
    """Make `path`.crt and .key, good for serving and as a client, unless a fitting pair is there."""
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = _names(sans)
    if _fits(path, issuer, subject, names):
        return
    key = ec.generate_private_key(ec.SECP256R1())
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOT_BEFORE)
        .not_valid_after(NOT_AFTER)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key()), critical=False
        )
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(issuer.key, None)
    write(path.with_suffix(".key"), key_pem(key))
    write(path.with_suffix(".crt"), certificate.public_bytes(serialization.Encoding.PEM))


def kubeconfig(server: str, ca: Path, client: Path) -> str:
    """A kubeconfig with everything in it, as k3s.yaml is."""

    def data(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    return f"""apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: {data(ca)}
    server: {server}
  name: default
contexts:
- context:
    cluster: default
    user: default
  name: default
current-context: default
kind: Config
users:
- name: default
  user:
    client-certificate-data: {data(client.with_suffix(".crt"))}
    client-key-data: {data(client.with_suffix(".key"))}
"""


def create(settings: Settings, secret: str, layout: Layout) -> None:
    """Write everything this server needs to serve and to be a client."""
    tls = layout.tls
    authorities = {
        name: authority(secret, name)
        for name in ("server-ca", "client-ca", "request-header-ca", "etcd/server-ca", "etcd/peer-ca")
    }
    for name, made in authorities.items():
        write(tls / f"{name}.crt", made.pem, 0o644)
    # kube-controller-manager signs certificate requests with these two.
    for name in ("server-ca", "client-ca"):
        write(tls / f"{name}.key", key_pem(authorities[name].key))
    write(tls / "service.key", key_pem(shared_key(secret, "service account")))

    first_service = str(next(ipaddress.ip_network(settings.service_cidr).hosts()))
    local = ["127.0.0.1", settings.node_ip, "localhost", settings.node_name]
    services = [f"kubernetes{end}" for end in ("", ".default", ".default.svc", ".default.svc.cluster.local")]
    serving = [*local, *services, first_service, *settings.tls_sans]
    server, client = authorities["server-ca"], authorities["client-ca"]
    issue(tls / "serving-kube-apiserver", server, "kube-apiserver", sans=serving)
    issue(tls / "serving-kubelet", server, settings.node_name, sans=local)
    issue(tls / "client-admin", client, "system:admin", ["system:masters"])
    issue(tls / "client-supervisor", client, "system:k3s-supervisor", ["system:masters"])
    issue(tls / "client-kube-apiserver", client, "system:apiserver", ["system:masters"])
    issue(tls / "client-controller", client, "system:kube-controller-manager")
    issue(tls / "client-scheduler", client, "system:kube-scheduler")
    issue(tls / "client-kubelet", client, f"system:node:{settings.node_name}", ["system:nodes"])
    issue(tls / "client-auth-proxy", authorities["request-header-ca"], "system:auth-proxy")
    issue(tls / "etcd/server-client", authorities["etcd/server-ca"], "etcd-server", sans=local)
    issue(tls / "etcd/client", authorities["etcd/server-ca"], "etcd-client")
    issue(tls / "etcd/peer-server-client", authorities["etcd/peer-ca"], "etcd-peer", sans=local)

    api = f"https://127.0.0.1:{settings.client_port}"
    for name, user in (
        ("admin", "client-admin"),
        ("controller", "client-controller"),
        ("scheduler", "client-scheduler"),
        ("kubelet", "client-kubelet"),
    ):
        write(layout.cred / f"{name}.kubeconfig", kubeconfig(api, tls / "server-ca.crt", tls / user))
    # At etcd-only k3s.yaml names the balancer, and 6443 again at full (measured).
    write(settings.kubeconfig, (layout.cred / "admin.kubeconfig").read_text(), settings.kubeconfig_mode)
