"""The command lines of the Kubernetes components and of the front, with k3s's values.

Where k3s's own value is known it is used (k3s source, release-1.34, pkg/daemons/control/server.go). Starting
and ending them is server.py's business; containerd and the kubelet are in agent.py.
"""

from __future__ import annotations

from pathlib import Path

from .layout import FRONT, PROGRAMS, SUPERVISOR_SOCKET, Layout
from .settings import Settings

Command = list[str | Path]


def _extra(settings: Settings, component: str) -> list[str]:
    return [f"--{argument.lstrip('-')}" for argument in settings.extra.get(f"{component}-arg", ())]


def etcd(layout: Layout) -> Command:
    return [PROGRAMS / "etcd", "--config-file", layout.etcd / "config"]


def front(settings: Settings, layout: Layout) -> Command:
    tls = layout.tls
    return [
        FRONT,
        f"-listen=:{settings.https_port}",
        f"-cert={tls}/serving-kube-apiserver.crt",
        f"-key={tls}/serving-kube-apiserver.key",
        f"-client-ca={tls}/client-ca.crt",
        f"-supervisor={SUPERVISOR_SOCKET}",
        f"-api=127.0.0.1:{settings.api_port}",
        f"-api-ca={tls}/server-ca.crt",
        f"-proxy-cert={tls}/client-auth-proxy.crt",
        f"-proxy-key={tls}/client-auth-proxy.key",
    ]


def apiserver(settings: Settings, layout: Layout) -> Command:
    tls = layout.tls
    return [
        PROGRAMS / "kube-apiserver",
        f"--advertise-address={settings.node_ip}",
        f"--advertise-port={settings.https_port}",
        "--bind-address=127.0.0.1",
        f"--secure-port={settings.api_port}",
        "--allow-privileged=true",
        "--anonymous-auth=false",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--enable-bootstrap-token-auth=true",
        "--enable-aggregator-routing=true",
        "--api-audiences=https://kubernetes.default.svc.cluster.local,k3s",
        f"--client-ca-file={tls}/client-ca.crt",
        "--etcd-servers=https://127.0.0.1:2379",
        f"--etcd-cafile={tls}/etcd/server-ca.crt",
        f"--etcd-certfile={tls}/etcd/client.crt",
        f"--etcd-keyfile={tls}/etcd/client.key",
        f"--kubelet-certificate-authority={tls}/server-ca.crt",
        f"--kubelet-client-certificate={tls}/client-kube-apiserver.crt",
        f"--kubelet-client-key={tls}/client-kube-apiserver.key",
        "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
        "--profiling=false",
        f"--proxy-client-cert-file={tls}/client-auth-proxy.crt",
        f"--proxy-client-key-file={tls}/client-auth-proxy.key",
        "--requestheader-allowed-names=system:auth-proxy",
        f"--requestheader-client-ca-file={tls}/request-header-ca.crt",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={tls}/service.key",
        f"--service-account-signing-key-file={tls}/service.key",
        f"--service-cluster-ip-range={settings.service_cidr}",
        "--storage-backend=etcd3",
        f"--tls-cert-file={tls}/serving-kube-apiserver.crt",
        f"--tls-private-key-file={tls}/serving-kube-apiserver.key",
        *_extra(settings, "kube-apiserver"),
    ]


def controller_manager(settings: Settings, layout: Layout) -> Command:
    tls = layout.tls
    kubeconfig = layout.cred / "controller.kubeconfig"
    return [
        PROGRAMS / "kube-controller-manager",
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--allocate-node-cidrs=true",
        f"--cluster-cidr={settings.cluster_cidr}",
        "--bind-address=127.0.0.1",
        f"--cluster-signing-cert-file={tls}/client-ca.crt",
        f"--cluster-signing-key-file={tls}/client-ca.key",
        "--profiling=false",
        f"--root-ca-file={tls}/server-ca.crt",
        f"--service-account-private-key-file={tls}/service.key",
        f"--service-cluster-ip-range={settings.service_cidr}",
        "--use-service-account-credentials=true",
        *_extra(settings, "kube-controller-manager"),
    ]


def scheduler(settings: Settings, layout: Layout) -> Command:
    kubeconfig = layout.cred / "scheduler.kubeconfig"
    return [
        PROGRAMS / "kube-scheduler",
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--profiling=false",
        *_extra(settings, "kube-scheduler"),
    ]
