//! Settings that a command line leaves open: from variables, from files, by default.
//!
//! ```text
//! flag  ►  variable      ►  the user's file                      ►  the system's file        ►  default
//! --key    FARMEM_KEY       $XDG_CONFIG_HOME/farmem/config.toml     /etc/farmem/config.toml
//!                           (~/.config/farmem/config.toml)
//! ```
//!
//! The first of these that names a key decides it; keys are decided one by one. Every value is
//! text, as the flag takes it, and is read by the flag's own parser. A wrong value is refused with
//! its origin, before anything is started.

use std::fmt::{self, Display};
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use toml::{Table, Value};

use crate::failure::Failure;

/// Keys that a file may have. A variable's name is `FARMEM_` and the key in capitals.
pub const KEYS: [&str; 8] = ["local", "node", "controller", "protect", "transport", "grace", "stats", "token"];

/// The system's file.
const SYSTEM: &str = "/etc/farmem/config.toml";

/// Where a setting's value is from.
#[derive(Clone, Debug, PartialEq)]
pub enum Origin {
    /// The command line.
    Flag(&'static str),
    /// A variable.
    Variable(String),
    /// A file.
    File(PathBuf),
    /// Nothing set it.
    Default,
}

impl Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(key) => write!(f, "--{key}"),
            Origin::Variable(name) => f.write_str(name),
            Origin::File(path) => path.display().fmt(f),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// The values from variables and files.
#[derive(Default)]
pub struct Settings {
    /// In order of precedence: where from, and the text of each key.
    levels: Vec<(Origin, &'static str, String)>,
}

impl Settings {
    /// Nothing but flags and defaults.
    pub fn none() -> Settings {
        Settings::default()
    }

    /// Reads this process's variables and the files.
    pub fn load() -> Result<Settings, Failure> {
        let user = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
        let home = || std::env::home_dir().filter(|dir| dir.is_absolute()).map(|dir| dir.join(".config"));
        let user = user.or_else(home).map(|dir| dir.join("farmem/config.toml"));
        Settings::from(|name| std::env::var(name).ok(), user, SYSTEM.into())
    }

    fn from(
        variable: impl Fn(&str) -> Option<String>,
        user: Option<PathBuf>,
        system: PathBuf,
    ) -> Result<Settings, Failure> {
        let mut levels = Vec::new();
        for key in KEYS {
            let name = format!("FARMEM_{}", key.to_uppercase());
            // An empty variable is one that was taken back.
            if let Some(text) = variable(&name).filter(|text| !text.is_empty()) {
                levels.push((Origin::Variable(name), key, text));
            }
        }
        for (path, is_users) in user.map(|path| (path, true)).into_iter().chain([(system, false)]) {
            let text = match fs::read_to_string(&path) {
                Ok(text) => text,
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => continue,
                // `su` and `sudo -E` leave another user's HOME behind.
                Err(e) if is_users && e.kind() == ErrorKind::PermissionDenied => continue,
                Err(e) => return Err(Failure::usage(format!("cannot read {}: {e}", path.display()))),
            };
            for (key, text) in read(&text).map_err(|wrong| Failure::usage(format!("{}{wrong}", path.display())))? {
                levels.push((Origin::File(path.clone()), key, text));
            }
        }
        Ok(Settings { levels })
    }

    /// Whether a value from `one` outweighs a value of another key from `other`.
    pub fn is_nearer(&self, one: &Origin, other: &Origin) -> bool {
        let place = |origin: &Origin| match origin {
            Origin::Flag(_) => 0,
            Origin::Variable(_) => 1,
            Origin::Default => usize::MAX,
            file => 2 + self.levels.iter().position(|(level, ..)| level == file).unwrap_or(self.levels.len()),
        };
        place(one) < place(other)
    }

    /// A key's value and its origin; the flag's value if there is one. `None`: the default is to be
    /// used.
    pub fn choose<T, E: Display>(
        &self,
        key: &'static str,
        flag: Option<T>,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<(T, Origin)>, Failure> {
        if let Some(value) = flag {
            return Ok(Some((value, Origin::Flag(key))));
        }
        let Some((origin, _, text)) = self.levels.iter().find(|(_, named, _)| *named == key) else { return Ok(None) };
        match parse(text) {
            Ok(value) => Ok(Some((value, origin.clone()))),
            Err(e) => {
                let place = if let Origin::File(_) = origin { format!("{origin}: {key}") } else { origin.to_string() };
                Err(Failure::usage(format!("{place} = '{text}': {e}")))
            }
        }
    }
}

/// The keys of a file and their texts; or what is wrong, with the line if that is known.
fn read(text: &str) -> Result<Vec<(&'static str, String)>, String> {
    let table: Table = text.parse().map_err(|e: toml::de::Error| {
        let line = e.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        let line = line.map_or(String::new(), |line| format!(", line {line}"));
        format!("{line}: {}", e.message().replace('\n', " "))
    })?;
    let mut values = Vec::new();
    for (key, value) in table {
        let Some(known) = KEYS.into_iter().find(|known| *known == key) else {
            return Err(format!(": unknown key '{key}'; known are {}", KEYS.join(", ")));
        };
        let text = match value {
            Value::String(text) => text,
            Value::Array(list) if known == "node" && list.iter().all(Value::is_str) => {
                list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",")
            }
            _ if known == "node" => return Err(": node must be a text or a list of texts: node = [\"a:7411\"]".into()),
            _ => return Err(format!(": {known} must be a text, in quotes")),
        };
        values.push((known, text));
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Files(PathBuf);

    impl Files {
        fn new(name: &str, user: &str, system: &str) -> Files {
            let dir = std::env::temp_dir().join(format!("farmem-settings-{}-{name}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            for (name, text) in [("user", user), ("system", system)] {
                if !text.is_empty() {
                    fs::write(dir.join(name), text).unwrap();
                }
            }
            Files(dir)
        }

        fn settings(&self, variables: &[(&str, &str)]) -> Result<Settings, Failure> {
            let variable =
                |name: &str| variables.iter().find(|(named, _)| *named == name).map(|(_, value)| (*value).to_owned());
            Settings::from(variable, Some(self.0.join("user")), self.0.join("system"))
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn text(settings: &Settings, key: &'static str, flag: Option<&str>) -> Option<(String, Origin)> {
        settings.choose(key, flag.map(String::from), |text| Ok::<_, String>(text.to_owned())).unwrap()
    }

    #[test]
    fn the_first_level_that_names_a_key_decides_it() {
        let system = "local = '1G'\nnode = 'a:1'\ngrace = '1s'\ntransport = 'tcp'\n";
        let files = Files::new("levels", "local = '2G'\nnode = ['b:1', 'c:1']\n", system);
        let (user, system) = (Origin::File(files.0.join("user")), Origin::File(files.0.join("system")));
        let settings = files.settings(&[("FARMEM_LOCAL", "3G"), ("FARMEM_NODE", "")]).unwrap();
        let some = |text: &str, origin| Some((text.to_owned(), origin));
        assert_eq!(text(&settings, "local", Some("4G")), some("4G", Origin::Flag("local")));
        assert_eq!(text(&settings, "local", None), some("3G", Origin::Variable("FARMEM_LOCAL".into())));
        assert_eq!(text(&settings, "node", None), some("b:1,c:1", user.clone()), "an empty variable says nothing");
        assert_eq!(text(&settings, "grace", None), some("1s", system.clone()));
        assert_eq!(text(&settings, "stats", None), None);
        let (flag, variable) = (Origin::Flag("node"), Origin::Variable("FARMEM_NODE".into()));
        let order = [flag, variable, user.clone(), system.clone(), Origin::Default];
        for (at, one) in order.iter().enumerate() {
            assert!(order.iter().enumerate().all(|(then, other)| settings.is_nearer(one, other) == (at < then)));
        }
        assert_eq!(text(&Settings::none(), "local", None), None);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (file, says) in [
            (
                "nodes = 'a:1'",
                ": unknown key 'nodes'; known are local, node, controller, protect, transport, grace, stats",
            ),
            ("local = 1", ": local must be a text, in quotes"),
            ("node = [1]", ": node must be a text or a list of texts"),
            ("\nlocal = 1G", ", line 2: "),
            ("[run]\nlocal = '1G'", ": unknown key 'run'"),
        ] {
            let files = Files::new("wrong", file, "");
            let line = files.settings(&[]).err().unwrap().line;
            assert!(line.contains(&format!("/user{says}")) && !line.contains('\n'), "{file}: {line}");
        }
        let files = Files::new("values", "local = 'lots'", "");
        let no_size = |settings: &Settings| {
            settings.choose("local", None, |text| text.parse::<crate::size::Size>()).err().unwrap().line
        };
        assert!(no_size(&files.settings(&[]).unwrap()).contains("/user: local = 'lots': not a size"));
        let line = no_size(&files.settings(&[("FARMEM_LOCAL", "1Q")]).unwrap());
        assert_eq!(line, "FARMEM_LOCAL = '1Q': unknown unit 'Q'; use k, M, G, T or %");
    }

    #[test]
    fn files_that_are_not_there_say_nothing() {
        let files = Files::new("none", "", "");
        assert!(files.settings(&[]).unwrap().levels.is_empty());
        let directory = Files::new("directory", "", "");
        fs::create_dir(directory.0.join("system")).unwrap();
        assert!(directory.settings(&[]).err().unwrap().line.contains("cannot read"));
    }

    proptest! {
        #[test]
        fn no_file_makes_the_reader_panic(text in "\\PC*|(local|node|[a-z]{1,5}) *= *[\\PC\n]{0,20}") {
            let _ = read(&text);
        }
    }
}
