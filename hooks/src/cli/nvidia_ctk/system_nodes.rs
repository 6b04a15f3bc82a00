//! NVIDIA's device nodes, with the major numbers that the kernel gave its drivers.
//!
//! Source: the driver's `README.txt`, chapter "Manually creating device files", and
//! <https://docs.nvidia.com/datacenter/tesla/mig-user-guide/#device-nodes>

/// A character device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Below `/dev`.
    pub path: String,
    pub major: u32,
    pub minor: u32,
}

impl Node {
    /// The name of its link below `/dev/char`.
    pub fn number(&self) -> String {
        format!("{}:{}", self.major, self.minor)
    }
}

/// The major numbers of NVIDIA's drivers in `/proc/devices`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Majors {
    /// `nvidia-frontend`, or `nvidia` since driver 530.
    pub gpu: Option<u32>,
    pub uvm: Option<u32>,
}

impl Majors {
    /// Reads the text of `/proc/devices`: the first part, up to the block devices.
    pub fn of(proc_devices: &str) -> Self {
        let lines = proc_devices.lines().take_while(|line| *line != "Block devices:");
        let mut majors = Self::default();
        for line in lines {
            let mut words = line.split_whitespace();
            let (Some(number), Some(name)) = (words.next(), words.next()) else {
                continue;
            };
            let number = number.parse().ok();
            match name {
                "nvidia-frontend" | "nvidia" => majors.gpu = majors.gpu.or(number),
                "nvidia-uvm" => majors.uvm = number,
                _ => {}
            }
        }
        majors
    }

    /// The control nodes that every GPU needs, and the drivers that `/proc/devices` lacks.
    pub fn control(self) -> (Vec<Node>, Vec<&'static str>) {
        let mut nodes = Vec::new();
        let mut missing = Vec::new();
        let mut add = |driver, major: Option<u32>, wanted: &[(&str, u32)]| match major {
            Some(major) => nodes.extend(wanted.iter().map(|(path, minor)| Node {
                path: (*path).to_owned(),
                major,
                minor: *minor,
            })),
            None => missing.push(driver),
        };
        add("nvidia", self.gpu, &[("nvidiactl", 255), ("nvidia-modeset", 254)]);
        add("nvidia-uvm", self.uvm, &[("nvidia-uvm", 0), ("nvidia-uvm-tools", 1)]);
        (nodes, missing)
    }

    /// The nodes of GPUs with these minor numbers.
    pub fn gpus(self, minors: &[u32]) -> Vec<Node> {
        let gpus = self.gpu.into_iter().flat_map(|major| {
            let path = |minor| format!("nvidia{minor}");
            minors.iter().map(move |&minor| Node { path: path(minor), major, minor })
        });
        gpus.collect()
    }
}

/// Owner, group and mode with which the driver has its nodes made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
}

impl Access {
    /// Reads the driver's settings (`/proc/driver/nvidia/params`). What they do not say is as the
    /// driver has it by default.
    pub fn of(params: &str) -> Self {
        let number = |name: &str| {
            let lines = params.lines().filter_map(|line| line.split_once(':'));
            let mut values = lines.filter(|(key, _)| key.trim() == name);
            values.next().and_then(|(_, value)| value.trim().parse().ok())
        };
        Self {
            uid: number("DeviceFileUID").unwrap_or(0),
            gid: number("DeviceFileGID").unwrap_or(0),
            mode: number("DeviceFileMode").unwrap_or(0o666) & 0o777,
        }
    }
}

/// The number after `Device Minor:` in a GPU's file.
pub fn minor_of(text: &str) -> Option<u32> {
    let mut lines = text.lines();
    lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == "Device Minor").then(|| value.trim().parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICES: &str = "Character devices:\n  1 mem\n195 nvidia-frontend\n195 nvidia\n237 nvidia-caps\n510 nvidia-uvm\n\nBlock devices:\n  8 nvidia-uvm\n";

    #[test]
    fn numbers_are_the_kernels() {
        let majors = Majors::of(DEVICES);
        let expected = Majors { gpu: Some(195), uvm: Some(510) };
        assert_eq!(majors, expected);
        let (nodes, missing) = majors.control();
        let shown: Vec<_> = nodes.iter().map(|n| format!("{} {}", n.path, n.number())).collect();
        assert_eq!(
            shown,
            [
                "nvidiactl 195:255",
                "nvidia-modeset 195:254",
                "nvidia-uvm 510:0",
                "nvidia-uvm-tools 510:1"
            ]
        );
        assert_eq!(missing, Vec::<&str>::new());
        let gpus = majors.gpus(&[0, 3]);
        let shown: Vec<_> = gpus.iter().map(|n| format!("{} {}", n.path, n.number())).collect();
        assert_eq!(shown, ["nvidia0 195:0", "nvidia3 195:3"]);
        let (nodes, missing) = Majors::of("Character devices:\n195 nvidia\n").control();
        assert_eq!((nodes.len(), missing), (2, vec!["nvidia-uvm"]));
        assert_eq!(Majors::default().control().1, ["nvidia", "nvidia-uvm"]);
        assert_eq!(Majors::default().gpus(&[0]), []);
    }

    #[test]
    fn the_driver_says_whose_its_nodes_are() {
        let access = |uid, gid, mode| Access { uid, gid, mode };
        for (params, expected) in [
            ("DeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\n", access(0, 44, 0o660)),
            ("ModifyDeviceFiles: 1\nDeviceFileMode: x\n", access(0, 0, 0o666)),
            ("", access(0, 0, 0o666)),
        ] {
            assert_eq!(Access::of(params), expected, "{params}");
        }
    }

    #[test]
    fn minors_are_in_the_drivers_files() {
        assert_eq!(minor_of("DeviceFileMinor: 21\nDeviceFileMode: 256\n"), None);
        assert_eq!(minor_of("Model: \t X\nDevice Minor: \t 3\n"), Some(3));
        assert_eq!(minor_of("Model: 3\nDevice Minor: x\n"), None);
    }
}
