// Command kube is etcd and Kubernetes in one program, the component chosen by the name it is called by.
//
// One program keeps the image small and lets the components of a server share their file pages in memory,
// as k3s does. The components themselves are upstream's; only kube-apiserver has one flag more, in
// apiserver.go.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

const kubeconfig = "/etc/rancher/k3s/k3s.yaml"

// newKubectlCommand makes kubectl use the server's kubeconfig where none is named, as k3s's kubectl does.
func newKubectlCommand() *cobra.Command {
	if os.Getenv("KUBECONFIG") == "" {
		if _, err := os.Stat(kubeconfig); err == nil {
			_ = os.Setenv("KUBECONFIG", kubeconfig)
		}
	}
	return kubectl.NewDefaultKubectlCommand()
}

func main() {
	var command *cobra.Command
	switch name := filepath.Base(os.Args[0]); name {
	case "etcd":
		etcdmain.Main(os.Args)
		return
	case "kube-apiserver":
		command = newAPIServerCommand()
	case "kube-controller-manager":
		command = controllers.NewControllerManagerCommand()
	case "kube-scheduler":
		command = scheduler.NewSchedulerCommand()
	case "kubelet":
		command = kubelet.NewKubeletCommand(context.Background())
	case "kubectl":
		command = newKubectlCommand()
	default:
		fmt.Fprintf(os.Stderr, "kube: no component is called %q\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(command))
}
