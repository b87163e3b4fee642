//! A stage while it is built: its configuration, its variables, its layers, and how each instruction changes them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{Base, BuildError, Made};
use crate::dockerfile::{CommandLine, Healthcheck, words};
use crate::ignore::clean;
use crate::oci::{History, ImageConfig};

/// How many ports one EXPOSE may name.
const MOST_PORTS: usize = 65_536;

/// A stage while it is built.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) config: ImageConfig,
    pub(super) trees: Vec<PathBuf>,
    /// The ARGs that were declared and have a value.
    pub(super) arguments: BTreeMap<String, String>,
    escape: char,
    created: String,
    command_set: bool,
}

impl State {
    pub(super) fn new(base: Base, escape: char, epoch: i64) -> State {
        let created = time(epoch);
        State {
            config: base.config,
            trees: base.trees,
            arguments: BTreeMap::new(),
            escape,
            created,
            command_set: false,
        }
    }

    /// ENV goes before ARG.
    pub(super) fn value(&self, name: &str) -> Option<String> {
        let set =
            self.config.config.env.iter().filter_map(|pair| pair.split_once('=')).find(|(n, _)| *n == name);
        set.map(|(_, value)| value.to_owned()).or_else(|| self.arguments.get(name).cloned())
    }

    pub(super) fn expand(&self, word: &str) -> Result<String, BuildError> {
        let values = |name: &str| self.value(name);
        let error = |source| BuildError::Word { word: word.to_owned(), source };
        words::expand(word, self.escape, &values).map_err(error)
    }

    pub(super) fn expand_text(&self, text: &str) -> Result<String, BuildError> {
        let values = |name: &str| self.value(name);
        words::expand_text(text, &values)
            .map_err(|source| BuildError::Word { word: "the here-document".into(), source })
    }

    pub(super) fn shell(&self) -> Vec<String> {
        let usual = || vec!["/bin/sh".to_owned(), "-c".to_owned()];
        self.config.config.shell.clone().unwrap_or_else(usual)
    }

    pub(super) fn workdir(&self) -> &str {
        if self.config.config.working_dir.is_empty() { "/" } else { &self.config.config.working_dir }
    }

    /// One more line of history, as the classic builder writes it.
    pub(super) fn note(&mut self, created_by: String, made: &Made) {
        let empty_layer = match made {
            Made::Nothing => true,
            Made::Layer(diff_id, tree) => {
                self.config.rootfs.diff_ids.push(*diff_id);
                self.trees.push(tree.clone());
                false
            }
        };
        let created = Some(self.created.clone());
        self.config.created = created.clone();
        self.config.history.push(History { created, created_by, comment: String::new(), empty_layer });
    }

    /// An instruction that only changes the configuration.
    pub(super) fn note_setting(&mut self, text: &str) {
        self.note(format!("{} #(nop)  {text}", self.shell().join(" ")), &Made::Nothing);
    }

    pub(super) fn env(&mut self, pairs: &[(String, String)]) -> Result<(), BuildError> {
        let filled = self.filled(pairs)?;
        for (name, value) in &filled {
            let env = &mut self.config.config.env;
            let pair = format!("{name}={value}");
            match env.iter_mut().find(|old| old.split_once('=').is_some_and(|(old, _)| old == name)) {
                Some(old) => *old = pair,
                None => env.push(pair),
            }
        }
        self.note_setting(&format!("ENV {}", joined(&filled)));
        Ok(())
    }

    pub(super) fn label(&mut self, pairs: &[(String, String)]) -> Result<(), BuildError> {
        let filled = self.filled(pairs)?;
        self.config.config.labels.extend(filled.iter().cloned());
        self.note_setting(&format!("LABEL {}", joined(&filled)));
        Ok(())
    }

    /// All values are those from before the line.
    fn filled(&self, pairs: &[(String, String)]) -> Result<Vec<(String, String)>, BuildError> {
        pairs.iter().map(|(name, value)| Ok((self.expand(name)?, self.expand(value)?))).collect()
    }

    fn words(&self, command: &CommandLine) -> Vec<String> {
        match command {
            CommandLine::List(list) => list.clone(),
            CommandLine::Shell(line) => [self.shell(), vec![line.clone()]].concat(),
        }
    }

    pub(super) fn cmd(&mut self, command: &CommandLine) {
        let words = self.words(command);
        self.config.config.cmd = Some(words.clone());
        self.command_set = true;
        self.note_setting(&format!("CMD {}", quoted_list(&words)));
    }

    pub(super) fn entrypoint(&mut self, command: &CommandLine) {
        let words = self.words(command);
        self.config.config.entrypoint = Some(words.clone()).filter(|words| !words.is_empty());
        // The base's command was meant for the base's entry point.
        if !self.command_set {
            self.config.config.cmd = None;
        }
        self.note_setting(&format!("ENTRYPOINT {}", quoted_list(&words)));
    }

    pub(super) fn expose(&mut self, ports: &[String]) -> Result<(), BuildError> {
        let values = |name: &str| self.value(name);
        let (mut all, mut told) = (Vec::new(), Vec::new());
        for word in ports {
            let error = |source| BuildError::Word { word: word.clone(), source };
            for port in words::expand_words(word, self.escape, &values).map_err(error)? {
                all.extend(self::ports(&port).ok_or_else(|| BuildError::Port(port.clone()))?);
                told.push(port);
            }
        }
        if all.len() > MOST_PORTS {
            return Err(BuildError::TooMuch);
        }
        let empty = serde_json::Value::Object(serde_json::Map::new());
        self.config.config.exposed_ports.extend(all.iter().map(|port| (port.clone(), empty.clone())));
        self.note_setting(&format!("EXPOSE {}", told.join(" ")));
        Ok(())
    }

    pub(super) fn volume(&mut self, volumes: &[String]) -> Result<(), BuildError> {
        let volumes = volumes.iter().map(|volume| self.expand(volume)).collect::<Result<Vec<_>, _>>()?;
        let empty = serde_json::Value::Object(serde_json::Map::new());
        self.config.config.volumes.extend(volumes.iter().map(|volume| (volume.clone(), empty.clone())));
        self.note_setting(&format!("VOLUME [{}]", volumes.join(" ")));
        Ok(())
    }

    pub(super) fn user(&mut self, user: &str) -> Result<(), BuildError> {
        self.config.config.user = self.expand(user)?;
        self.note_setting(&format!("USER {}", self.config.config.user));
        Ok(())
    }

    pub(super) fn stop_signal(&mut self, signal: &str) -> Result<(), BuildError> {
        let signal = self.expand(signal)?;
        self.note_setting(&format!("STOPSIGNAL {signal}"));
        self.config.config.stop_signal = Some(signal);
        Ok(())
    }

    pub(super) fn set_shell(&mut self, shell: &[String]) {
        self.config.config.shell = Some(shell.to_vec());
        self.note_setting(&format!("SHELL [{}]", shell.join(" ")));
    }

    pub(super) fn set_workdir(&mut self, written: &str) -> Result<(), BuildError> {
        let path = self.expand(written)?;
        let full = if path.starts_with('/') { path } else { format!("{}/{path}", self.workdir()) };
        self.config.config.working_dir = clean(&full);
        Ok(())
    }

    pub(super) fn health(&mut self, check: &Healthcheck) {
        let mut value = serde_json::Map::new();
        match check {
            Healthcheck::None => drop(value.insert("Test".into(), vec!["NONE"].into())),
            Healthcheck::Command { command, interval, timeout, start_period, start_interval, retries } => {
                let test = match command {
                    CommandLine::List(list) => [vec!["CMD".to_owned()], list.clone()].concat(),
                    CommandLine::Shell(line) => vec!["CMD-SHELL".to_owned(), line.clone()],
                };
                value.insert("Test".into(), test.into());
                let numbers = [
                    ("Interval", interval),
                    ("Timeout", timeout),
                    ("StartPeriod", start_period),
                    ("StartInterval", start_interval),
                    ("Retries", retries),
                ];
                value.extend(
                    numbers.iter().filter(|(_, n)| **n > 0).map(|(name, n)| ((*name).into(), (**n).into())),
                );
            }
        }
        let value = serde_json::Value::Object(value);
        self.note_setting(&format!("HEALTHCHECK {value}"));
        self.config.config.healthcheck = Some(value);
    }
}

fn joined(pairs: &[(String, String)]) -> String {
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

fn quoted_list(words: &[String]) -> String {
    format!("[{}]", words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" "))
}

/// `80`, `80/udp`, `8000-8010`, `8080:80`, each as the image names it.
fn ports(text: &str) -> Option<Vec<String>> {
    let (range, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let protocol = protocol.to_ascii_lowercase();
    let range = range.rsplit(':').next()?;
    let (low, high) = range.split_once('-').unwrap_or((range, range));
    let (low, high): (u16, u16) = (low.parse().ok()?, high.parse().ok()?);
    let good = matches!(protocol.as_str(), "tcp" | "udp" | "sctp") && low <= high;
    good.then(|| (low..=high).map(|port| format!("{port}/{protocol}")).collect())
}

/// Seconds as a date.
fn time(epoch: i64) -> String {
    let (days, seconds) = (epoch.div_euclid(86_400), epoch.rem_euclid(86_400));
    // Counted from the first of March of the year 0, so that the leap day is a year's last.
    let shifted = days + 719_468;
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + next;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{date:02}T{hours:02}:{minutes:02}:{seconds:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_dates() {
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
        assert_eq!(time(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(time(1_700_000_000), "2023-11-14T22:13:20Z");
        assert_eq!(time(-1), "1969-12-31T23:59:59Z");
    }

    #[test]
    fn ports_have_ranges_and_protocols() {
        assert_eq!(ports("80").unwrap(), ["80/tcp"]);
        assert_eq!(ports("8000-8001/UDP").unwrap(), ["8000/udp", "8001/udp"]);
        for wrong in ["", "x", "80/x", "9-8", "70000", "-1"] {
            assert_eq!(ports(wrong), None, "{wrong}");
        }
    }
}
