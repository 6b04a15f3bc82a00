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
    pub caps: Option<u32>,
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
                "nvidia-caps" => majors.caps = number,
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

    /// The nodes of GPUs and of capabilities with these minor numbers.
    pub fn others(self, gpus: &[u32], capabilities: &[u32]) -> Vec<Node> {
        let node = |path: String, major, minor| Node { path, major, minor };
        let gpus = self.gpu.into_iter().flat_map(|major| {
            gpus.iter().map(move |minor| node(format!("nvidia{minor}"), major, *minor))
        });
        let caps = self.caps.into_iter().flat_map(|major| {
            let path = |minor| format!("nvidia-caps/nvidia-cap{minor}");
            capabilities.iter().map(move |minor| node(path(minor), major, *minor))
        });
        gpus.chain(caps).collect()
    }
}

/// The number after `DeviceFileMinor:` in a capability's file, or after `Device Minor:` in a GPU's.
pub fn minor_of(text: &str) -> Option<u32> {
    let mut lines = text.lines();
    lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_minor = matches!(name.trim(), "DeviceFileMinor" | "Device Minor");
        is_minor.then(|| value.trim().parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICES: &str = "Character devices:\n  1 mem\n195 nvidia-frontend\n195 nvidia\n237 nvidia-caps\n510 nvidia-uvm\n\nBlock devices:\n  8 nvidia-uvm\n";

    #[test]
    fn numbers_are_the_kernels() {
        let majors = Majors::of(DEVICES);
        let expected = Majors { gpu: Some(195), uvm: Some(510), caps: Some(237) };
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
        let others = majors.others(&[0, 3], &[21]);
        let shown: Vec<_> = others.iter().map(|n| format!("{} {}", n.path, n.number())).collect();
        assert_eq!(shown, ["nvidia0 195:0", "nvidia3 195:3", "nvidia-caps/nvidia-cap21 237:21"]);
        let (nodes, missing) = Majors::of("Character devices:\n195 nvidia\n").control();
        assert_eq!((nodes.len(), missing), (2, vec!["nvidia-uvm"]));
        assert_eq!(Majors::default().control().1, ["nvidia", "nvidia-uvm"]);
        assert_eq!(Majors::default().others(&[0], &[1]), []);
    }

    #[test]
    fn minors_are_in_the_drivers_files() {
        assert_eq!(minor_of("DeviceFileMinor: 21\nDeviceFileMode: 256\n"), Some(21));
        assert_eq!(minor_of("Model: \t X\nDevice Minor: \t 3\n"), Some(3));
        assert_eq!(minor_of("Model: 3\nDevice Minor: x\n"), None);
    }
}
