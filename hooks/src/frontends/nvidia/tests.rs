use super::*;
use crate::config::settings::Loaded;
use crate::frontends::foreign::Foreign;
use crate::frontends::FrontEnd;
use crate::log::Log;
use crate::model::policy::{OnRefusal, Writer};
use crate::model::request::{Channels, Units};
use crate::spec::config::request_with;

/// A container's config.
fn spec(environment: &[&str], more: &str) -> String {
    let entries: Vec<String> = environment
        .iter()
        .map(|entry| crate::spec::json::quote(entry))
        .collect();
    let entries = entries.join(",");
    format!(r#"{{"process":{{"env":[{entries}]{more}}}}}"#)
}

fn config(mode: Mode) -> Config {
    Config {
        mode,
        ..Config::default()
    }
}

fn read<'a>(text: &'a str, config: &Config, policy: &Policy, reader: Reader) -> Request<'a> {
    let nvidia = Nvidia {
        config,
        problem: None,
        reader,
        reads_annotations: true,
        file: None,
    };
    let mut request = request_with(text.as_bytes(), &nvidia.wanted());
    let host = tempfile::tempdir().unwrap();
    nvidia.read(&mut request, text.as_bytes(), policy, &HostOf(host.path()));
    request
}

/// Devices, capabilities and requirements on one line. Empty for a container that asks for nothing.
fn asked(text: &str, config: &Config) -> std::result::Result<String, String> {
    let request = read(text, config, &Policy::default(), Reader::Runtime);
    assert_eq!(request.doubt, None, "{text}");
    let Some(ask) = request.asks.first() else {
        return Ok(String::new());
    };
    assert!(request.suspect.is_some() && request.asks.len() == 1);
    let details = ask.details.as_ref().map_err(ToString::to_string)?;
    let units = match &ask.units {
        Units::All => "all".to_owned(),
        Units::None => "none".to_owned(),
        Units::These(names) => names.join(","),
    };
    let capabilities = if details.capabilities.len() == config.capabilities.len() {
        "every".to_owned()
    } else {
        details.capabilities.join(",")
    };
    let requirements = details.requirements.iter().map(|r| format!(" {}", r.text));
    let requirements: String = requirements.collect();
    Ok(format!("{units} {capabilities}{requirements}"))
}

/// The results are those of NVIDIA's hook, without its mistakes.
#[test]
fn environments() {
    let usual = config(Mode::Auto);
    for (entries, expected) in [
        (&[][..], ""),
        (&["NVIDIA_VISIBLE_DEVICES="], ""),
        (&["NVIDIA_VISIBLE_DEVICES=void"], ""),
        (&["NVIDIA_VISIBLE_DEVICES=0,void"], ""),
        (&["NVIDIA_VISIBLE_DEVICES=void,all"], ""),
        (&["NVIDIA_VISIBLE_DEVICES=all,void"], ""),
        (&["NVIDIA_VISIBLE_DEVICES=none,void"], ""),
        (&["NVIDIA_VISIBLE_DEVICES=all,0, void ,1"], ""),
        (&["CUDA_VERSION=9.0", "NVIDIA_VISIBLE_DEVICES=all,void"], ""),
        // Only the exact word counts.
        (&["NVIDIA_VISIBLE_DEVICES=voids"], "voids compute,utility"),
        (&["NVIDIA_VISIBLE_DEVICES=VOID"], "VOID compute,utility"),
        (&["NVIDIA_VISIBLE_DEVICES= , "], ""),
        (&["NVIDIA_VISIBLE_DEVICES=none"], "none compute,utility"),
        (&["NVIDIA_VISIBLE_DEVICES=0,none"], "none compute,utility"),
        (&["NVIDIA_VISIBLE_DEVICES=none,all"], "none compute,utility"),
        (&["NVIDIA_VISIBLE_DEVICES=all,none"], "all compute,utility"),
        (&["NVIDIA_VISIBLE_DEVICES=all"], "all compute,utility"),
        (&["NVIDIA_VISIBLE_DEVICES=0,all"], "all compute,utility"),
        (&["NVIDIA_VISIBLE_DEVICES= 0 , 1 "], "0,1 compute,utility"),
        (&["NVIDIA_VISIBLE_DEVICES=0,,1"], "0,1 compute,utility"),
        // NVIDIA's hook makes an empty name of the second 0.
        (&["NVIDIA_VISIBLE_DEVICES=0,0"], "0 compute,utility"),
        (
            &["NVIDIA_VISIBLE_DEVICES=GPU-a,1:0,MIG-b"],
            "GPU-a,1:0,MIG-b compute,utility",
        ),
        // NVIDIA's hook crashes on a name of one letter.
        (
            &["NVIDIA_VISIBLE_DEVICES=0,a/b=c"],
            "0,a/b=c compute,utility",
        ),
        (
            &["NVIDIA_VISIBLE_DEVICES=0,nvidia.com/gpu=1"],
            "0,1 compute,utility",
        ),
        (
            &["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=1"],
            "1 compute,utility",
        ),
        (
            &["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=void"],
            "",
        ),
        (&["CUDA_VERSION=9.0"], "all every cuda>=9.0"),
        (&["CUDA_VERSION=9.0", "NVIDIA_VISIBLE_DEVICES="], ""),
        (
            &["CUDA_VERSION=9.0", "NVIDIA_VISIBLE_DEVICES=0"],
            "0 every cuda>=9.0",
        ),
        (&["CUDA_VERSION=9.0", "NVIDIA_REQUIRE_CUDA=cuda>=9.0"], ""),
        // Empty is as good as not set.
        (
            &["CUDA_VERSION=9.0", "NVIDIA_REQUIRE_CUDA="],
            "all every  cuda>=9.0",
        ),
        (
            &[
                "CUDA_VERSION=9.0",
                "NVIDIA_REQUIRE_CUDA=cuda>=8.0",
                "NVIDIA_VISIBLE_DEVICES=all",
            ],
            "all compute,utility cuda>=8.0",
        ),
        (
            &["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES="],
            "0 compute,utility",
        ),
        (
            &["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all"],
            "0 every",
        ),
        (
            &[
                "NVIDIA_VISIBLE_DEVICES=0",
                "NVIDIA_DRIVER_CAPABILITIES=video,compute",
            ],
            "0 video,compute",
        ),
        (
            &[
                "NVIDIA_VISIBLE_DEVICES=0",
                "NVIDIA_REQUIRE_CUDA=cuda>=99",
                "NVIDIA_DISABLE_REQUIRE=1",
            ],
            "0 compute,utility",
        ),
    ] {
        let found = asked(&spec(entries, ""), &usual);
        assert_eq!(found.as_deref(), Ok(expected), "{entries:?}");
    }
}

#[test]
fn mistakes_refuse_containers_that_ask() {
    let usual = config(Mode::Auto);
    for (entries, part) in [
        (
            &["CUDA_VERSION=foo"][..],
            "CUDA_VERSION=foo of the image is not a version",
        ),
        (
            &["NVIDIA_VISIBLE_DEVICES=0", "BARE"],
            "its environment has \"BARE\", which is not NAME=VALUE",
        ),
        (
            &["NVIDIA_VISIBLE_DEVICES"],
            "has \"NVIDIA_VISIBLE_DEVICES\", which is not NAME=VALUE",
        ),
        (
            &["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=fly"],
            "asks for \"fly\", which is not supported",
        ),
        (
            &["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_MIG_CONFIG_DEVICES=all"],
            "NVIDIA_MIG_CONFIG_DEVICES=all is for privileged containers only",
        ),
        (
            &["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_MIG_MONITOR_DEVICES=all"],
            "NVIDIA_MIG_MONITOR_DEVICES=all is for privileged containers only",
        ),
        (
            &["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=x"],
            "the IMEX channel \"x\", which is not a number",
        ),
    ] {
        let error = asked(&spec(entries, ""), &usual).unwrap_err();
        assert!(error.contains(part), "{entries:?}\n{error}");
        let mut quiet: Vec<&str> = entries
            .iter()
            .copied()
            .filter(|entry| !entry.starts_with("NVIDIA_VISIBLE_DEVICES"))
            .collect();
        quiet.push("NVIDIA_VISIBLE_DEVICES=void");
        assert_eq!(asked(&spec(&quiet, ""), &usual).unwrap(), "", "{quiet:?}");
    }
    let disabled = Config {
        disable_require: true,
        ..Config::default()
    };
    let text = spec(&["CUDA_VERSION=foo"], "");
    assert_eq!(asked(&text, &disabled).unwrap(), "all every");
}

#[test]
fn rights_and_channels() {
    let text = spec(
        &[
            "NVIDIA_VISIBLE_DEVICES=none",
            "NVIDIA_IMEX_CHANNELS=0,1",
            "NVIDIA_MIG_MONITOR_DEVICES=all",
        ],
        r#","capabilities":["CAP_SYS_ADMIN"]"#,
    );
    let request = read(
        &text,
        &config(Mode::Auto),
        &Policy::default(),
        Reader::Runtime,
    );
    let details = request.asks[0].details.as_ref().unwrap();
    assert_eq!(details.channels, Channels::These(vec![0, 1]));
    assert_eq!(
        details.mig_rights,
        [crate::model::request::MigRight::Monitor]
    );
    assert!(details.groups);
}

#[test]
fn swarm_variables_come_before_the_usual_one() {
    let swarm = Config {
        swarm_resources: vec!["DOCKER_RESOURCE_GPU".to_owned(), "GPU2".to_owned()],
        ..Config::default()
    };
    for (entries, expected) in [
        (&["NVIDIA_VISIBLE_DEVICES=all"][..], "all compute,utility"),
        (
            &[
                "GPU2=2",
                "NVIDIA_VISIBLE_DEVICES=all",
                "DOCKER_RESOURCE_GPU=0,1",
            ],
            "0,1,2 compute,utility",
        ),
        (
            &["GPU2=2", "NVIDIA_VISIBLE_DEVICES=void"],
            "2 compute,utility",
        ),
        (&["GPU2=", "NVIDIA_VISIBLE_DEVICES=all"], ""),
        (&["GPU2=2", "DOCKER_RESOURCE_GPU=void"], ""),
        (&["GPU2=void", "DOCKER_RESOURCE_GPU=all"], ""),
    ] {
        let found = asked(&spec(entries, ""), &swarm);
        assert_eq!(found.as_deref(), Ok(expected), "{entries:?}");
    }
}

const MOUNTS: &str = r#","x":0},"mounts":[
    {"source":"/dev/null","destination":"/var/run/nvidia-container-devices/1"},
    {"source":"/dev/null","destination":"/var/run/nvidia-container-devices/cdi/v.com/gpu/2"},
    {"source":"/dev/null","destination":"/var/run/nvidia-container-devices/cdi/v.com/gpu=3"},
    {"source":"/dev/null","destination":"/var/run/nvidia-container-devices/imex/7"},
    {"source":"/dev/zero","destination":"/var/run/nvidia-container-devices/4"},
    {"source":"/dev/null","destination":"/var/run/nvidia-container-devices"},
    {"source":"/dev/null","destination":"/var/run/nvidia-container-devicesx/5"}],"y":{"z":0"#;

#[test]
fn mounts_come_before_variables_where_they_count() {
    let accepting = Config {
        volume_mounts: true,
        ..config(Mode::JitCdi)
    };
    let text = spec(&["NVIDIA_VISIBLE_DEVICES=all"], MOUNTS);
    assert_eq!(
        asked(&text, &accepting).unwrap(),
        "1,v.com/gpu=2,v.com/gpu=3 compute,utility"
    );
    assert_eq!(
        asked(&text, &config(Mode::JitCdi)).unwrap(),
        "all compute,utility"
    );
    let request = read(&text, &accepting, &Policy::default(), Reader::Runtime);
    let ask = &request.asks[0];
    assert_eq!(ask.source, Source::Mounts);
    assert_eq!(ask.by, "the mount /var/run/nvidia-container-devices/1");
    let channels = &ask.details.as_ref().unwrap().channels;
    assert_eq!(*channels, Channels::These(vec![7]));
    // If our policy does not accept mounts, the variable counts.
    let policy = Policy {
        mounts: Who::None,
        ..Policy::default()
    };
    let request = read(&text, &accepting, &policy, Reader::Runtime);
    assert_eq!(request.asks[0].by, DEVICES);
    assert_eq!(request.refused.len(), 2);
}

#[test]
fn annotations_come_before_all_else() {
    let text = spec(
        &["NVIDIA_VISIBLE_DEVICES=0"],
        r#"},"annotations":{"cdi.k8s.io/a":"v.com/gpu=1, v.com/gpu=2","cdi.k8s.io/b":"v.com/nic=3"},"y":{"z":0"#,
    );
    let request = read(
        &text,
        &config(Mode::Auto),
        &Policy::default(),
        Reader::Runtime,
    );
    let ask = &request.asks[0];
    assert_eq!(
        (ask.source, ask.way, ask.by.as_str()),
        (Source::Cdi, Way::Cdi, "cdi.k8s.io/a")
    );
    let names = ["v.com/gpu=1", "v.com/gpu=2", "v.com/nic=3"].map(str::to_owned);
    assert_eq!(ask.units, Units::These(names.to_vec()));
    // They count only if both kinds of source count.
    for policy in [
        Policy {
            cdi: Who::Privileged,
            ..Policy::default()
        },
        Policy {
            annotations: Who::None,
            ..Policy::default()
        },
    ] {
        let request = read(&text, &config(Mode::Auto), &policy, Reader::Runtime);
        assert_eq!(
            (request.asks[0].by.as_str(), request.refused.len()),
            (DEVICES, 1)
        );
    }
}

/// An image may have written the annotation, where an engine copies its labels.
#[test]
fn no_annotation_of_an_image_overrides_a_user_who_wants_nothing() {
    let label = r#"},"annotations":{"cdi.k8s.io/a":"v.com/gpu=1"},"y":{"z":0"#;
    let (all, user) = (Who::All, Writer::User);
    for (variable, environment, annotations_from, sources) in [
        ("void", all, Writer::Image, &[][..]),
        ("none", all, Writer::Image, &[Source::Environment]),
        ("0", all, Writer::Image, &[Source::Cdi]),
        ("void", all, user, &[Source::Cdi]),
        ("0", Who::None, Writer::Image, &[]),
        ("0", Who::None, user, &[Source::Cdi]),
    ] {
        let policy = Policy {
            annotations_from,
            environment,
            ..Policy::default()
        };
        let text = spec(&[&format!("{DEVICES}={variable}")], label);
        let request = read(&text, &config(Mode::Auto), &policy, Reader::Runtime);
        let asked: Vec<Source> = request.asks.iter().map(|ask| ask.source).collect();
        assert_eq!(asked, sources, "{variable} {policy:?}");
    }
}

#[test]
fn modes_say_who_gives_and_how_names_are_read() {
    for (mode, reader, value, way, units) in [
        (
            Mode::Cdi,
            Reader::Runtime,
            "0,v.com/nic=1",
            Way::Cdi,
            &["nvidia.com/gpu=0", "v.com/nic=1"][..],
        ),
        (
            Mode::Cdi,
            Reader::Runtime,
            "all",
            Way::Cdi,
            &["nvidia.com/gpu=all"],
        ),
        (
            Mode::Auto,
            Reader::Runtime,
            "nvidia.com/gpu=0",
            Way::Cdi,
            &["nvidia.com/gpu=0"],
        ),
        (
            Mode::JitCdi,
            Reader::Runtime,
            "nvidia.com/gpu=0",
            Way::VendorFile,
            &["0"],
        ),
        (Mode::Csv, Reader::Runtime, "0", Way::Csv, &["0"]),
        (Mode::Legacy, Reader::Runtime, "0", Way::Hook, &["0"]),
        (Mode::Cdi, Reader::Hook, "0", Way::VendorFile, &["0"]),
        (
            Mode::Legacy,
            Reader::Hook,
            "nvidia.com/gpu=1",
            Way::VendorFile,
            &["1"],
        ),
    ] {
        let text = spec(&[&format!("NVIDIA_VISIBLE_DEVICES={value}")], "");
        let request = read(&text, &config(mode), &Policy::default(), reader);
        let units = Units::These(units.iter().map(|&name| name.to_owned()).collect());
        let ask = &request.asks[0];
        assert_eq!((ask.way, &ask.units), (way, &units), "{mode:?} {value}");
        assert!(ask.details.is_ok());
    }
    let text = spec(&["NVIDIA_VISIBLE_DEVICES=v.com/nic=1"], "");
    let request = read(&text, &config(Mode::Auto), &Policy::default(), Reader::Hook);
    let error = request.asks[0].details.clone().unwrap_err().to_string();
    assert!(
        error.contains("\"v.com/nic=1\", which a hook can't give"),
        "{error}"
    );
    let text = spec(&["NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all"], "");
    let request = read(
        &text,
        &config(Mode::JitCdi),
        &Policy::default(),
        Reader::Hook,
    );
    assert_eq!(request.asks[0].units, Units::All);
}

#[test]
fn hooks_of_the_spec_are_known_where_one_is_added() {
    let hooks =
        r#"},"hooks":{"prestart":[{"path":"/usr/bin/nvidia-container-runtime-hook"}]},"y":{"z":0"#;
    let text = spec(&["NVIDIA_VISIBLE_DEVICES=0"], hooks);
    for (mode, expected) in [
        (
            Mode::Legacy,
            &["/usr/bin/nvidia-container-runtime-hook"][..],
        ),
        (Mode::JitCdi, &[]),
    ] {
        let request = read(&text, &config(mode), &Policy::default(), Reader::Runtime);
        assert_eq!(request.hooks, expected);
    }
}

#[test]
fn unprivileged_images_may_be_kept_from_asking() {
    let strict = Config {
        environment_when_unprivileged: false,
        ..Config::default()
    };
    let privileged = r#","capabilities":{"bounding":["CAP_SYS_ADMIN"]}"#;
    for (more, asks, refused) in [("", 0, 1), (privileged, 1, 0)] {
        let text = spec(&["NVIDIA_VISIBLE_DEVICES=all"], more);
        let request = read(&text, &strict, &Policy::default(), Reader::Runtime);
        assert_eq!((request.asks.len(), request.refused.len()), (asks, refused));
        for reason in &request.refused {
            assert!(
                reason.contains("accept-nvidia-visible-devices-envvar-when-unprivileged is false")
            );
        }
    }
    // Our own policy applies to every interface.
    let policy = Policy {
        environment: Who::Privileged,
        on_refusal: OnRefusal::Fail,
        ..Policy::default()
    };
    let text = spec(&["NVIDIA_VISIBLE_DEVICES=all"], "");
    let request = read(&text, &Config::default(), &policy, Reader::Runtime);
    assert_eq!((request.asks.len(), request.refused.len()), (0, 1));
    let expected = "NVIDIA_VISIBLE_DEVICES of the container's environment does not count: \"policy.environment\" is \"privileged\"";
    assert_eq!(request.refused[0], expected);
}

#[test]
fn what_may_be_meant_is_suspected() {
    for (entries, suspect) in [
        (
            &["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"][..],
            Some(DEVICES),
        ),
        (&["NVIDIA_VISIBLE_DEVICES=void"], None),
        (&["CUDA_VERSION=9.0"], Some(CUDA_VERSION)),
        (&["PATH=/bin"], None),
    ] {
        let mut text = spec(entries, "");
        text.insert_str(text.len() - 1, r#","Process":{}"#);
        let request = read(
            &text,
            &Config::default(),
            &Policy::default(),
            Reader::Runtime,
        );
        assert!(request.doubt.is_some() && request.asks.is_empty());
        assert_eq!(request.suspect.as_deref(), suspect, "{entries:?}");
        let policy = Policy {
            environment: Who::None,
            ..Policy::default()
        };
        let request = read(&text, &Config::default(), &policy, Reader::Runtime);
        assert_eq!(request.suspect, None);
    }
}

#[test]
fn a_broken_configuration_puts_a_request_in_doubt() {
    let problem = Error::usage("config.toml: wrong");
    let config = Config::default();
    let nvidia = Nvidia {
        config: &config,
        problem: Some(&problem),
        reader: Reader::Runtime,
        reads_annotations: true,
        file: None,
    };
    for (value, doubt) in [("all", Some(&problem)), ("void", None)] {
        let text = spec(&[&format!("NVIDIA_VISIBLE_DEVICES={value}")], "");
        let mut request = request_with(text.as_bytes(), &nvidia.wanted());
        nvidia.read(
            &mut request,
            text.as_bytes(),
            &Policy::default(),
            &HostOf(Path::new("/")),
        );
        assert_eq!(request.doubt.as_ref(), doubt);
        assert!(request.asks.is_empty());
    }
}

/// A host with a vendor file that answers, and a board's file list.
fn tree() -> (tempfile::TempDir, Loaded) {
    let dir = tempfile::tempdir().unwrap();
    let lists = "etc/nvidia-container-runtime/host-files-for-container.d";
    for (path, text) in [
        (
            "conf/v.json",
            r#"{"activation_flag":"OCI_V","driver_feature":["compute"],"interfaces":["nvidia"],
            "inventory":{"compute":{"directories":["/compute"]},"own":{"directories":["/own"]}}}"#,
        ),
        (&format!("{lists}/l4t.csv"), "dir,/opt/board\n"),
        ("opt/board/file", ""),
    ] {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let settings = crate::config::settings::Settings {
        root: dir.path().to_owned(),
        config_dir: dir.path().join("conf"),
        ..Default::default()
    };
    let loaded = Loaded {
        settings,
        ..Loaded::default()
    };
    (dir, loaded)
}

/// The edits of a container in a mode.
fn edits(mode: Mode, text: &str, hook: &str) -> Option<Edits> {
    let (_dir, loaded) = tree();
    let log = Log::new(crate::log::level::Level::Emergency, None, "");
    let config = Config {
        hook: hook.to_owned(),
        ..config(mode)
    };
    let mut front_end = FrontEnd::new(&loaded, &log, Reader::Runtime);
    front_end.foreign = Foreign::of_nvidia(
        &loaded.settings,
        Nvidia {
            config: &config,
            problem: None,
            reader: Reader::Runtime,
            reads_annotations: true,
            file: None,
        },
    );
    front_end
        .edits(&front_end.request(text.as_bytes()))
        .unwrap()
}

#[test]
fn every_mode_works_with_dockers_own_hook() {
    let docker =
        r#"},"hooks":{"prestart":[{"path":"/usr/bin/nvidia-container-runtime-hook"}]},"y":{"z":0"#;
    for more in ["", docker] {
        let text = spec(&["NVIDIA_VISIBLE_DEVICES=all"], more);
        // The spec is edited: a hook has nothing left to do.
        for mode in [Mode::Auto, Mode::JitCdi] {
            let edits = edits(mode, &text, "/bin/sh").unwrap();
            assert_eq!(edits.directories, ["/compute"]);
            assert_eq!(edits.replaced_hooks, HOOKS);
            assert!(edits.hooks.is_empty() && edits.environment.is_empty());
        }
        let csv = edits(Mode::Csv, &text, "/bin/sh").unwrap();
        assert_eq!(csv.mounts[0].target, "/opt/board");
        assert_eq!(csv.replaced_hooks, HOOKS);
        assert_eq!(csv.environment, ["NVIDIA_VISIBLE_DEVICES=void"]);
        // One hook gives the devices.
        let legacy = edits(Mode::Legacy, &text, "/bin/sh").unwrap();
        assert!(legacy.directories.is_empty() && legacy.replaced_hooks.is_empty());
        let added: Vec<_> = legacy.hooks.iter().map(|hook| hook.path.as_str()).collect();
        let expected: &[&str] = if more.is_empty() { &["/bin/sh"] } else { &[] };
        assert_eq!(added, expected);
    }
}

#[test]
fn hooks_that_the_settings_leave_out_are_not_added() {
    let host = tempfile::tempdir().unwrap();
    let folder = host.path().join("proc/driver/nvidia");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("params"), "ModifyDeviceFiles: 1\n").unwrap();
    let host = Host::open(host.path()).unwrap();
    let text = spec(&["NVIDIA_VISIBLE_DEVICES=all"], "");
    let (params, compat) = ("disable-device-node-modification", "enable-cuda-compat");
    for (mode, reader, names, expected) in [
        (Mode::Auto, Reader::Runtime, &[][..], (1, true)),
        (Mode::Auto, Reader::Runtime, &[params], (0, true)),
        (Mode::Auto, Reader::Runtime, &[compat], (1, false)),
        (Mode::JitCdi, Reader::Runtime, &["all"], (0, false)),
        (Mode::JitCdi, Reader::Runtime, &["chmod"], (1, true)),
        // NVIDIA's hook knows nothing of them.
        (Mode::Auto, Reader::Hook, &["all"], (0, true)),
    ] {
        let config = Config {
            disabled_hooks: names.iter().map(|&name| name.to_owned()).collect(),
            ..config(mode)
        };
        let nvidia = Nvidia {
            config: &config,
            problem: None,
            reader,
            reads_annotations: true,
            file: None,
        };
        let hooks = nvidia.beside(&host).unwrap().hooks.len();
        let request = read(&text, &config, &Policy::default(), reader);
        let details = request.asks[0].details.as_ref().unwrap();
        let found = (hooks, details.compat);
        assert_eq!(found, expected, "{mode:?} {reader:?} {names:?}");
    }
}

#[test]
fn our_own_flags_count_in_every_mode() {
    for mode in [Mode::Auto, Mode::JitCdi, Mode::Legacy, Mode::Csv, Mode::Cdi] {
        let text = spec(&["OCI_V=own"], "");
        let edits = edits(mode, &text, "/bin/sh").unwrap();
        assert_eq!(edits.directories, ["/own"], "{mode:?}");
        assert!(edits.hooks.is_empty() && edits.replaced_hooks.is_empty());
        let none = spec(&["NVIDIA_VISIBLE_DEVICES=void"], "");
        assert_eq!(self::edits(mode, &none, "/bin/sh"), None);
    }
    let both = spec(&["OCI_V=own", "NVIDIA_VISIBLE_DEVICES=all"], "");
    let edits = edits(Mode::Auto, &both, "/bin/sh").unwrap();
    assert_eq!(edits.directories, ["/compute", "/own"]);
}

/// A candidate with these sources and names.
fn candidate(sources: &[Source], names: &[&str]) -> devices::Candidate {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    devices::Candidate {
        sources: sources.to_vec(),
        by: "a test".to_owned(),
        words: devices::Words::These(names),
    }
}

#[test]
fn names_of_cdi_count_where_cdi_does_but_for_a_schedulers() {
    use Source::{Annotations, Cdi, Environment, Scheduler};
    for (sources, expected) in [
        (&[Environment][..], &[Environment, Cdi][..]),
        (&[Cdi, Annotations], &[Cdi, Annotations]),
        (&[Scheduler], &[Scheduler]),
    ] {
        let mut found = candidate(sources, &["0"]);
        found.require_cdi();
        assert_eq!(found.sources, expected);
    }
}

#[test]
fn a_word_of_an_annotation_has_to_be_a_name_of_cdi() {
    let good = "nvidia.com/gpu=0";
    for (source, names, expected) in [
        (Source::Cdi, &[good, "gpu0"][..], Some("gpu0")),
        (Source::Cdi, &[good], None),
        (Source::Environment, &["gpu0"], None),
    ] {
        assert_eq!(candidate(&[source], names).malformed(), expected);
    }
}

#[test]
fn a_scheduler_gives_what_a_container_would_ask_for_by_itself() {
    let text = spec(&["NVIDIA_VISIBLE_DEVICES=1"], "");
    let usual = config(Mode::Auto);
    let mut request = read(&text, &usual, &Policy::default(), Reader::Runtime);
    for is_scheduled in [false, true] {
        request.is_scheduled = is_scheduled;
        let found = devices::candidates(&request, &usual);
        let said: Vec<_> = found
            .iter()
            .map(|one| (one.is_schedulers(), one.names()))
            .collect();
        assert_eq!(said, [(is_scheduled, &["1".to_owned()][..])]);
    }
}
