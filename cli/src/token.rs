//! `farmem token`: makes, lists, rotates and revokes the tokens by which tenants borrow. The flag
//! `--token` of other commands is in [`crate::borrow`].

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use farmem_control::state::MOST_QUOTAS;
use farmem_memory::tokens::{self, Entry, Store, StoreError};
use farmem_nic::tenants::Standing;
use farmem_protocol::extent::place::BLOCK_BYTES;
use farmem_sys::{descriptors, process};
use farmem_trust::{Token, hex, is_tenant, unhex};

use crate::failure::Failure;
use crate::rack::controller;
use crate::size::{self, Size};
use crate::units;

/// Make, list and take back the tokens by which tenants borrow of nodes
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  farmem token create --tenant lab --quota 64G --store tokens.toml > lab.token
  farmem node --lend 128G --listen 0.0.0.0:7411 --tokens tokens.toml
  farmem run --token lab.token --node bighost:7411 -- ./job

A node reads its store again when it changes. A token that was revoked, or whose time is over, ends its \
runs within 2 seconds.";

/// Bytes a second, below which --rate is refused.
const LEAST_RATE: u64 = 64 << 10;

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Make a token, print it, and keep its key in the store
    ///
    /// Whoever can read the store can borrow, so it must be readable for its owner alone.
    /// A file to which it goes by > is made readable for its owner alone.
    #[command(after_help = "\
Examples:
  farmem token create --tenant lab --quota 64G --expires 30d \\
      --store tokens.toml > lab.token
  farmem token create --tenant rack --store tokens.toml > rack.token
      The tenant rack: nodes and orders of a rack prove themselves by it.")]
    Create {
        /// The tenant's name: letters, digits, _ and -
        #[arg(long, value_name = "NAME")]
        tenant: String,
        /// What all programs of the tenant may hold together at a node
        #[arg(long, value_name = "SIZE")]
        quota: Option<Size>,
        /// What they may hold together in a whole rack, whose controller and nodes read this store
        #[arg(long, value_name = "SIZE")]
        rack_quota: Option<Size>,
        /// Bytes a second that they may move together through a node, such as 500M
        #[arg(long, value_name = "SIZE")]
        rate: Option<Size>,
        /// How long the token is valid, such as 30d
        #[arg(long, value_name = "TIME", value_parser = crate::time::parse)]
        expires: Option<Duration>,
        #[command(flatten)]
        store: StoreFile,
    },
    /// List the tokens of a store
    #[command(after_help = "\
Example:
  farmem token list --store tokens.toml")]
    List {
        #[command(flatten)]
        store: StoreFile,
    },
    /// Take a token back: its runs end
    #[command(after_help = "\
Examples:
  farmem token revoke b257cdc0b58cb74d --store tokens.toml
  farmem token revoke lab --store tokens.toml
      All tokens of the tenant lab.")]
    Revoke {
        /// The token's id, as list shows it, or a tenant's name for all of its tokens
        #[arg(value_name = "ID|TENANT")]
        which: String,
        #[command(flatten)]
        store: StoreFile,
    },
    /// Make another token for a tenant; the tokens that it has can be used until they are revoked
    #[command(after_help = "\
Example:
  farmem token rotate --tenant lab --store tokens.toml > new.token
      Give it to those who borrow, then revoke the old one by its id.")]
    Rotate {
        /// The tenant's name
        #[arg(long, value_name = "NAME")]
        tenant: String,
        /// How long the new token is valid, such as 30d
        #[arg(long, value_name = "TIME", value_parser = crate::time::parse)]
        expires: Option<Duration>,
        #[command(flatten)]
        store: StoreFile,
    },
}

#[derive(clap::Args, Debug)]
struct StoreFile {
    /// The store, which nodes read by --tokens
    #[arg(long = "store", value_name = "FILE")]
    path: PathBuf,
}

/// Carries out the command.
pub fn run(options: &Options) -> Result<(), Failure> {
    let wrong = |e: StoreError| Failure::usage(e.to_string());
    match &options.command {
        Command::Create { tenant, quota, rack_quota, rate, expires, store } => {
            let ram = size::ram().map_err(Failure::usage)?.total;
            if let Some(Size::OfRam(_)) = rate {
                return Err(Failure::usage("--rate is bytes a second, not a share of RAM: write for example 500M"));
            }
            let [quota, rack_quota, rate] = [quota, rack_quota, rate].map(|size| size.map(|size| size.bytes(ram)));
            for (flag, given) in [("--quota", quota), ("--rack-quota", rack_quota)] {
                if let Some(little) = given.filter(|&given| given < BLOCK_BYTES) {
                    let why = "the least that anybody is given (a run: 64 MiB)";
                    return Err(Failure::usage(units::too_little(flag, little, BLOCK_BYTES, why)));
                }
            }
            if rate.is_some_and(|rate| rate < LEAST_RATE) {
                return Err(Failure::usage("--rate is below 64K, at which no program gets on"));
            }
            // `revoke` takes either by its name.
            if unhex::<8>(tenant).is_some() {
                return Err(Failure::usage(format!("--tenant {tenant}: it would be taken for the id of a token")));
            }
            create(tenant, *expires, &store.path, |store| {
                let about = store.tenants.entry(tenant.clone()).or_default();
                about.quota = quota.or(about.quota);
                about.rack_quota = rack_quota.or(about.rack_quota);
                about.rate = rate.or(about.rate);
                let quotas = store.tenants.values().filter(|about| about.rack_quota.is_some()).count();
                if rack_quota.is_some() && quotas > MOST_QUOTAS { Err(controller::too_many()) } else { Ok(()) }
            })
        }
        Command::Rotate { tenant, expires, store } => create(tenant, *expires, &store.path, |store| {
            let known = store.tokens.iter().any(|entry| entry.tenant == *tenant);
            if known { Ok(()) } else { Err(format!("it has no token of {tenant}: farmem token create makes one")) }
        }),
        Command::List { store } => {
            print!("{}", table(&Store::read(&store.path).map_err(wrong)?));
            Ok(())
        }
        Command::Revoke { which, store } => Store::change(&store.path, |store| {
            let mut found = store.tokens.iter_mut().filter(|e| e.id == *which || e.tenant == *which).peekable();
            if found.peek().is_none() {
                return Err(format!("it has no token and no tenant {which}: see farmem token list"));
            }
            found.for_each(|entry| entry.revoked = true);
            Ok(())
        })
        .map_err(wrong),
    }
}

fn create(
    tenant: &str,
    expires: Option<Duration>,
    store: &Path,
    about: impl FnOnce(&mut Store) -> Result<(), String>,
) -> Result<(), Failure> {
    if !is_tenant(tenant) {
        return Err(Failure::usage(format!("--tenant {tenant}: 1 to 64 letters, digits, '_' and '-'")));
    }
    let mut random = [0; 40];
    process::random_bytes(&mut random).map_err(|e| Failure::usage(format!("no randomness for a token: {e}")))?;
    let token = Token::new(tenant, &random).ok_or_else(|| Failure::usage("no tenant can be called so"))?;
    // It is kept in whole seconds.
    if expires.is_some_and(|time| time.as_secs() == 0) {
        return Err(Failure::usage("--expires is below a second: the token would have expired before its first use"));
    }
    let expires = expires.map(|time| tokens::now() + time.as_secs());
    let mut out = output().map_err(|e| Failure::usage(format!("no token was made: {e}")))?;
    let (before, after) = Store::change(store, |store| {
        let before = store.tenants.get(tenant).cloned();
        about(store)?;
        store.tokens.push(Entry::new(&token, expires));
        Ok((before, store.tenants.get(tenant).cloned()))
    })
    .map_err(|e| Failure::usage(e.to_string()))?;
    // A disk's error may come late.
    let printed = out.write_all(format!("{token}\n").as_bytes()).and_then(|()| match out.metadata()?.is_file() {
        true => out.sync_all(),
        false => Ok(()),
    });
    printed.map_err(|e| {
        let id = hex(&token.key().id);
        let taken_back = Store::change(store, |store| {
            store.tokens.retain(|entry| entry.id != id);
            // Another command may have changed the tenant since.
            if store.tenants.get(tenant) == after.as_ref() {
                match before {
                    Some(before) => store.tenants.insert(tenant.to_owned(), before),
                    None => store.tenants.remove(tenant),
                };
            }
            Ok(())
        });
        match taken_back {
            Ok(()) => Failure::usage(format!("no token was made, because it cannot be printed: {e}")),
            Err(kept) => Failure::usage(format!(
                "the token {id} is in the store, and cannot be printed: {e}; revoke it, since taking it back failed: \
                 {kept}"
            )),
        }
    })
}

/// Standard output, where a token is printed. If that is a file of this user's, its owner alone may
/// open it from now on, whatever mode the shell has given it. An error if another process has it
/// open already, because that one could read the token.
fn output() -> io::Result<File> {
    let out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let about = out.metadata()?;
    // Where it is closed the standard library has opened /dev/null in its place.
    if about.file_type().is_char_device() && about.rdev() == std::fs::metadata("/dev/null")?.rdev() {
        return Err(io::Error::other(
            "standard output is closed, or /dev/null, and a token is shown once: name a file by >",
        ));
    }
    // Another's file is another's business: this process cannot change it, or is root's.
    if about.is_file() && about.uid() == process::user() {
        out.set_permissions(Permissions::from_mode(about.mode() & 0o600))?;
        if descriptors::is_open_elsewhere(out.as_raw_fd()) {
            return Err(io::Error::other(
                "another process has the file open that it would be printed into, and could read it: name another file",
            ));
        }
    }
    Ok(out)
}

fn table(store: &Store) -> String {
    let mut rows = vec![["tenant", "token", "state", "expires", "quota", "in the rack", "rate"].map(str::to_owned)];
    for entry in &store.tokens {
        let state = match entry.standing() {
            Standing::Good => "good",
            Standing::Revoked => "revoked",
            Standing::Expired => "expired",
        };
        let left = entry.expires.map(|end| end.saturating_sub(tokens::now()));
        let expires = match left {
            None => "never".to_owned(),
            Some(0) => "past".to_owned(),
            Some(left) if left >= 2 * 86400 => format!("in {} days", left / 86400),
            Some(left) => format!("in {} h {} min", left / 3600, left / 60 % 60),
        };
        let about = store.tenants.get(&entry.tenant).cloned().unwrap_or_default();
        let [quota, in_rack] =
            [about.quota, about.rack_quota].map(|quota| quota.map_or_else(|| "none".to_owned(), units::bytes));
        let rate = about.rate.map_or_else(|| "none".to_owned(), |rate| format!("{}/s", units::bytes(rate)));
        rows.push([entry.tenant.clone(), entry.id.clone(), state.to_owned(), expires, quota, in_rack, rate]);
    }
    units::aligned(&rows)
}
