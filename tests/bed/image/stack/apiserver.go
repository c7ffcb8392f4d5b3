// The kube-apiserver command with k3s's one extra flag, --advertise-port.
//
// k3s serves the API to the world on 6443 through its own mux while kube-apiserver itself listens on
// 127.0.0.1:6444; the fork of Kubernetes that k3s is built from therefore has a flag --advertise-port for
// the port written into the `kubernetes` endpoints (k3s source, release-1.34,
// pkg/daemons/control/server.go). Upstream takes that port from its listener, so this file wraps the
// listener once every use of the real port is over. Nothing else of kube-apiserver is changed here.
package main

import (
	"net"

	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/cli/globalflag"
	"k8s.io/component-base/compatibility"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// advertisedListener says another port than the one it listens on.
type advertisedListener struct {
	net.Listener
	port int
}

func (l advertisedListener) Addr() net.Addr {
	address := *l.Listener.Addr().(*net.TCPAddr)
	address.Port = l.port
	return &address
}

func newAPIServerCommand() *cobra.Command {
	serverOptions := options.NewServerRunOptions()
	ctx := genericapiserver.SetupSignalContext()
	gate := serverOptions.GenericServerRunOptions.ComponentGlobalsRegistry.FeatureGateFor(
		compatibility.DefaultKubeComponent)
	advertisePort := 0

	cmd := &cobra.Command{
		Use:          "kube-apiserver",
		SilenceUsage: true,
		Args:         cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := serverOptions.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
				return err
			}
			rest.SetDefaultWarningHandler(rest.NoWarnings{})
			if err := logsapi.ValidateAndApply(serverOptions.Logs, gate); err != nil {
				return err
			}
			completed, err := serverOptions.Complete(ctx)
			if err != nil {
				return err
			}
			if errs := completed.Validate(); len(errs) != 0 {
				return utilerrors.NewAggregate(errs)
			}
			config, err := app.NewConfig(completed)
			if err != nil {
				return err
			}
			if advertisePort != 0 {
				serving := config.KubeAPIs.ControlPlane.Generic.SecureServing
				serving.Listener = advertisedListener{serving.Listener, advertisePort}
			}
			completedConfig, err := config.Complete()
			if err != nil {
				return err
			}
			chain, err := app.CreateServerChain(completedConfig)
			if err != nil {
				return err
			}
			prepared, err := chain.PrepareRun()
			if err != nil {
				return err
			}
			return prepared.Run(ctx)
		},
	}
	cmd.SetContext(ctx)

	sets := serverOptions.Flags()
	globalflag.AddGlobalFlags(sets.FlagSet("global"), cmd.Name(), logs.SkipLoggingConfigurationFlags())
	for _, set := range sets.FlagSets {
		cmd.Flags().AddFlagSet(set)
	}
	cmd.Flags().IntVar(&advertisePort, "advertise-port", 0,
		"port of the kubernetes endpoints; 0 means the port listened on")
	return cmd
}
