//! The machine that figures are of, as far as it bears on them.

use std::fs;

use serde::Serialize;

/// Facts that a reader needs to compare figures with those of another machine.
#[derive(Clone, Debug, Serialize)]
pub struct Environment {
    /// Version and build of farmem.
    pub farmem: String,
    /// Kernel release.
    pub kernel: String,
    /// CPU model.
    pub cpu: String,
    /// CPUs that the benchmark may use.
    pub cpus: usize,
    /// Frequency governor; `None` where the kernel does not choose frequencies (most virtual
    /// machines).
    pub governor: Option<String>,
    /// Whether a hypervisor is below.
    pub virtual_machine: bool,
    /// Main memory, bytes.
    pub memory_bytes: u64,
    /// Transparent huge pages: the mode in force.
    pub huge_pages: String,
    /// Swap readahead: 2^n pages.
    pub page_cluster: String,
    /// Tasks running or waiting to, one-minute mean, at the start. Above 1, other programs are
    /// using the machine.
    pub load: String,
}

impl Environment {
    /// Reads it from `/proc` and `/sys`. Values that cannot be read are said to be unknown.
    pub fn read() -> Environment {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            cpuinfo.lines().find(|line| line.starts_with(name)).and_then(|line| line.split_once(": ")).map(|(_, v)| v)
        };
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory_kib: u64 = memory.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0);
        let huge_pages = line("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        let huge_pages = huge_pages.split(['[', ']']).nth(1).unwrap_or("unknown").to_owned();
        Environment {
            farmem: format!(
                "{} ({})",
                env!("CARGO_PKG_VERSION"),
                if cfg!(debug_assertions) { "debug build" } else { "release build" }
            ),
            kernel: line("/proc/sys/kernel/osrelease").unwrap_or_else(unknown),
            cpu: field("model name").unwrap_or("unknown").to_owned(),
            cpus: crate::affinity::allowed().len(),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            virtual_machine: field("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            memory_bytes: memory_kib * 1024,
            huge_pages,
            page_cluster: line("/proc/sys/vm/page-cluster").unwrap_or_else(unknown),
            load: line("/proc/loadavg")
                .and_then(|load| load.split(' ').next().map(str::to_owned))
                .unwrap_or_else(unknown),
        }
    }
}

impl std::fmt::Display for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "farmem {} · Linux {} · {} × {}{} · {:.0} GiB",
            self.farmem,
            self.kernel,
            self.cpus,
            self.cpu,
            if self.virtual_machine { ", virtual" } else { "" },
            self.memory_bytes as f64 / (1u64 << 30) as f64
        )?;
        writeln!(
            f,
            "governor {} · transparent huge pages {} · swap readahead 2^{} pages · load {} at the start",
            self.governor.as_deref().unwrap_or("none"),
            self.huge_pages,
            self.page_cluster,
            self.load
        )
    }
}

fn unknown() -> String {
    "unknown".into()
}

fn line(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}
