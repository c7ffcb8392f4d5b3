# SPDX-License-Identifier: GPL-3.0-or-later
#
# Regrading on NixOS: the watcher from a pinned release of exadev.k3s_regrade, and the levels of k3s as specialisations
# that are switched to in place. README.md says how to use it, and what of it was tried.
{ config, lib, pkgs, ... }:

let
  cfg = config.services.regrade;

  # The collection's archive as it was released, by its hash: the core runs without Ansible.
  release = pkgs.fetchurl {
    url = "https://github.com/exadev/k3s_regrade/releases/download/v${cfg.version}/exadev-k3s_regrade-${cfg.version}.tar.gz";
    hash = cfg.hash;
  };

  python = pkgs.python3.withPackages (packages: [ packages.kubernetes ]);

  core = pkgs.runCommand "regrade-core-${cfg.version}" { } ''
    mkdir -p "$out/lib"
    tar -xzf ${release} -C "$out/lib" --strip-components=2 plugins/module_utils/regrade
    ${python}/bin/python3 -m compileall -q "$out/lib"
  '';

  regrade = pkgs.writeShellScriptBin "regrade" ''
    export PYTHONPATH=${core}/lib
    exec ${python}/bin/python3 -m regrade.cli "$@"
  '';

  script = name: file: inputs: pkgs.writeShellApplication {
    inherit name;
    runtimeInputs = inputs;
    text = builtins.readFile file;
    bashOptions = [ ]; # each sets its own
  };

  level = script "regrade-level" ./regrade-level.sh [ pkgs.coreutils pkgs.curl pkgs.util-linux config.systemd.package ];

  layDropIn = script "regrade-lay-drop-in" ./lay-drop-in.sh [ pkgs.coreutils ];

  settings = {
    NODE_NAME = cfg.nodeName;
    KUBE_SERVER = lib.concatStringsSep "," cfg.kubeServers;
    KUBECONFIG = cfg.kubeconfig;
    RUNTIME = "command";
    ACTUATOR_COMMAND = "${level}/bin/regrade-level";
    ETCD_ONLY_HTTPS_PORT = "16443"; # as etcd-only.yaml says
    STEP_UP = "automatic";
  } // cfg.settings;
in
{
  options.services.regrade = {
    enable = lib.mkEnableOption "stepping this k3s server down under memory pressure, and back up";
    version = lib.mkOption {
      type = lib.types.str;
      default = "0.1.0";
      description = "Release of exadev.k3s_regrade that the core is taken from.";
    };
    hash = lib.mkOption {
      type = lib.types.str;
      description = "Hash of that release's archive (`nix hash file --sri ARCHIVE`).";
    };
    nodeName = lib.mkOption {
      type = lib.types.str;
      default = config.networking.hostName;
      defaultText = lib.literalExpression "config.networking.hostName";
      description = "Name of this server's Node.";
    };
    kubeServers = lib.mkOption {
      type = lib.types.listOf lib.types.str;
      example = [ "https://10.0.0.12:6443" "https://10.0.0.13:6443" ];
      description = "The other servers' own APIs, never this one's: at etcd-only it has none.";
    };
    kubeconfig = lib.mkOption {
      type = lib.types.str;
      default = "/etc/regrade/kube/config";
      description = "Kubeconfig of this server's own ServiceAccount. It holds a token: never put it in the store.";
    };
    settings = lib.mkOption {
      type = lib.types.attrsOf lib.types.str;
      default = { };
      example = { MEMAVAILABLE_FLOOR = "10%"; };
      description = "Further settings of the core, and others than those of this module.";
    };
  };

  config = lib.mkIf cfg.enable {
    boot.kernelParams = [ "psi=1" ];

    # What differs from level to level. A specialisation of the same name in your own configuration is merged with it:
    # what is to rest at a level besides k3s goes there.
    specialisation = {
      control-plane.configuration.environment.etc."regrade/level".text = "control-plane\n";
      etcd-only.configuration.environment.etc = {
        "regrade/level".text = "etcd-only\n";
        "regrade/k3s.yaml".source = ./etcd-only.yaml;
      };
    };

    # A switch must not restart k3s: it asks nobody. The actuator does it, once a step may; after a rebuild that
    # changes k3s itself, `regrade with-lease -- systemctl restart k3s` does it while no server steps.
    systemd.services.k3s = {
      restartIfChanged = false;
      serviceConfig = {
        ExecStartPre = [ "${layDropIn}/bin/regrade-lay-drop-in" ];
        Restart = lib.mkForce "always"; # also after code 0: its vote would be away
      };
    };

    environment.etc."regrade/settings.env".text = lib.generators.toKeyValue { } settings;
    environment.systemPackages = [ regrade ];

    systemd.services.regrade = {
      description = "Steps k3s down under memory pressure, and back up";
      wantedBy = [ "multi-user.target" ];
      wants = [ "network-online.target" ];
      after = [ "network-online.target" "k3s.service" ];
      restartTriggers = [ config.environment.etc."regrade/settings.env".source ];
      serviceConfig = {
        ExecStart = "${regrade}/bin/regrade watch";
        Restart = "always";
        RestartSec = 5;
        StateDirectory = "regrade";
        StateDirectoryMode = "0700";
        KillMode = "process"; # a step under way goes on, and the next watcher ends what is left of it
        TimeoutStopSec = 30;
        LimitMEMLOCK = "infinity";
        OOMScoreAdjust = -900;
        CPUWeight = 1000;
      };
    };
  };
}
