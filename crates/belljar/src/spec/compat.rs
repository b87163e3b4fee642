//! Fixes that let old code run on newer tools, as data: each is variables, a command, or both.

/// One of Belljar's own fixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompatFix {
    /// The name a task asks for it by.
    pub name: &'static str,
    /// What it does.
    pub description: &'static str,
    /// A shell command, run in the workdir before setup.
    pub command: Option<&'static str>,
    /// Variables set in every phase; the task's own win.
    pub env: &'static [(&'static str, &'static str)],
}

/// All fixes, by name.
pub const FIXES: &[CompatFix] = &[
    CompatFix {
        name: "collections-abc",
        description: "names that left `collections` in Python 3.10 are taken from `collections.abc`",
        command: Some(COLLECTIONS_ABC),
        env: &[],
    },
    CompatFix {
        name: "no-warnings",
        description: "Python's warnings are silent, and pytest does not turn them into errors",
        command: None,
        env: &[("PYTHONWARNINGS", "ignore"), ("PYTEST_ADDOPTS", "-W ignore")],
    },
    CompatFix {
        name: "pytest-bump",
        description: "pins of pytest in requirement and build files become `pytest>=7.4,<9`",
        command: Some(PYTEST_BUMP),
        env: &[],
    },
    CompatFix {
        name: "setuptools-cap",
        description: "pip installs setuptools before 58 (before 81 on Python 3.12 and later), builds included",
        command: Some(SETUPTOOLS_CAP),
        env: &[("PIP_BUILD_CONSTRAINT", CONSTRAINT_FILE), ("PIP_CONSTRAINT", CONSTRAINT_FILE)],
    },
];

/// The fix of that name.
pub fn find(name: &str) -> Option<&'static CompatFix> {
    FIXES.iter().find(|fix| fix.name == name)
}

/// The names of all fixes, for a message.
pub fn names() -> String {
    FIXES.iter().map(|fix| fix.name).collect::<Vec<_>>().join(", ")
}

/// In the home directory, which setup and run share.
const CONSTRAINT_FILE: &str = "/home/runner/.belljar-constraints.txt";

/// Before 58, `setup.py` files with `use_2to3` still build. Python 3.12 needs newer ones; below 81 is what
/// setuptools itself tells users of `pkg_resources` to pin.
const SETUPTOOLS_CAP: &str = r#"cat > /home/runner/.belljar-constraints.txt <<'END'
setuptools<58; python_version < "3.12"
setuptools<81; python_version >= "3.12"
END"#;

/// Only a specifier directly after the word is rewritten: `pytest-cov==2` stays.
const PYTEST_BUMP: &str = r"find . -name .git -prune -o -type f \( -name '*requirements*.txt' -o -path '*/requirements/*.txt' -o -name setup.py -o -name setup.cfg -o -name pyproject.toml -o -name tox.ini \) -exec sed -i -E 's/(^|[^A-Za-z0-9_.-])pytest[[:space:]]*(==|~=|<=|>=|<|>)[[:space:]]*[0-9][0-9.*]*([[:space:]]*,[[:space:]]*(==|~=|!=|<=|>=|<|>)[[:space:]]*[0-9][0-9.*]*)*/\1pytest>=7.4,<9/g' {} +";

/// Read and written as Latin-1, so that every byte that is not changed stays as it is.
const COLLECTIONS_ABC: &str = r#"python3 - <<'END'
import os, re
NAMES = set("""Awaitable Coroutine AsyncIterable AsyncIterator AsyncGenerator Hashable Iterable Iterator
Generator Reversible Sized Container Callable Collection Set MutableSet Mapping MutableMapping MappingView
KeysView ItemsView ValuesView Sequence MutableSequence ByteString""".split())
ATTRIBUTE = re.compile(r"(?<![\w.])collections\.(%s)\b" % "|".join(sorted(NAMES)))
IMPORT = re.compile(r"^([ \t]*)from[ \t]+collections[ \t]+import[ \t]+(?:\(([^()#]*)\)|([^()#\\\r\n]*[^()#\\\s]))", re.M)
def split(match):
    names = [" ".join(name.split()) for name in (match[2] or match[3] or "").split(",") if name.strip()]
    moved = [name for name in names if name.split()[0] in NAMES]
    if not moved:
        return match[0]
    kept = [name for name in names if name not in moved]
    line = "from collections.abc import " + ", ".join(moved)
    return match[1] + (line + "; from collections import " + ", ".join(kept) if kept else line)
for folder, folders, files in os.walk("."):
    folders[:] = sorted(name for name in folders if name != ".git")
    for name in sorted(files):
        path = os.path.join(folder, name)
        if not name.endswith(".py") or os.path.islink(path):
            continue
        with open(path, encoding="latin-1", newline="") as file:
            old = file.read()
        new = ATTRIBUTE.sub(r"collections.abc.\1", IMPORT.sub(split, old))
        if new != old:
            with open(path, "w", encoding="latin-1", newline="") as file:
                file.write(new)
END"#;
