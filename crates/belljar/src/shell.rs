//! How a command's text reaches a shell inside: a login shell whose profile cannot drop the planned environment.

use std::collections::BTreeMap;

use crate::plan::{AfterProfile, PlannedCommand, PlannedShell};

/// Where shells are looked for, in order.
const FOLDERS: [&str; 2] = ["/bin", "/usr/bin"];

/// The absolute paths to try for the planned shells.
pub(crate) fn programs(shell: &PlannedShell) -> Vec<String> {
    let in_folders = |name: &String| FOLDERS.map(|folder| format!("{folder}/{name}"));
    shell.candidates.iter().flat_map(in_folders).collect()
}

/// The arguments after the program's name.
pub(crate) fn arguments(
    shell: &PlannedShell,
    script: &str,
    environment: &BTreeMap<String, String>,
) -> Vec<String> {
    let script = match shell.after_profile {
        AfterProfile::ApplyEnvironmentAgain => format!("{}{script}", exports(environment)),
    };
    shell.flags.iter().cloned().chain([script]).collect()
}

/// One line without an end, so that the line numbers of the script stay what they are.
pub(crate) fn exports(environment: &BTreeMap<String, String>) -> String {
    // An image may set what no shell can name; the program gets it all the same.
    let nameable = environment.iter().filter(|(name, _)| is_name(name));
    let pairs: String = nameable.map(|(name, value)| format!(" {name}={}", quote(value))).collect();
    if pairs.is_empty() { pairs } else { format!("export{pairs}; ") }
}

fn is_name(name: &str) -> bool {
    let plain = |sign: char| sign.is_ascii_alphanumeric() || sign == '_';
    name.chars().all(plain) && !name.starts_with(|first: char| first.is_ascii_digit()) && !name.is_empty()
}

fn quote(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

/// One script that runs commands in one shell, so that `cd` and `export` carry, and stops at the first that fails.
pub(crate) fn joined(commands: &[PlannedCommand]) -> String {
    let blocks: Vec<String> = commands.iter().map(|command| format!("{{\n{}\n}}", command.script)).collect();
    blocks.join(" && ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_whatever_they_hold() {
        let value = "a'b\"c$(d)`e`\\ f";
        let environment = BTreeMap::from([("X".to_owned(), value.to_owned())]);
        let script = format!("{}printf %s \"$X\"", exports(&environment));
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), value);
    }

    #[test]
    fn names_that_no_shell_knows_do_not_become_commands() {
        let hostile = ["x; echo forged", "1a", "a.b", "", "$(id)"];
        let environment = hostile.map(|name| (name.to_owned(), "v".to_owned())).into();
        assert_eq!(exports(&environment), "");
    }

    #[test]
    fn joined_commands_share_a_shell_and_stop_at_the_first_failure() {
        let command = |script: &str| PlannedCommand { name: None, script: script.to_owned() };
        let run = |scripts: &[&str]| {
            let script = joined(&scripts.iter().map(|script| command(script)).collect::<Vec<_>>());
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            (output.status.code(), String::from_utf8(output.stdout).unwrap())
        };
        assert_eq!(run(&["X=1 # comment", "echo $X"]), (Some(0), "1\n".to_owned()));
        assert_eq!(run(&["echo a", "(exit 3)", "echo b"]), (Some(3), "a\n".to_owned()));
    }
}
