"""A stand-in for the k3s program, made of the real etcd, Kubernetes and containerd.

It behaves as k3s does wherever somebody outside can see it: files, ports, flags, exit codes, Node metadata.
It knows nothing of what is tested on it; nothing that names a product belongs anywhere in this package.
"""
