//! The examples below each `--help`.

/// Below `belljar --help`.
pub(crate) const BELLJAR: &str = "\
Examples:
  belljar run tasks/custom-dev/toy_fail_pytest    run a task, watch it, leave a record
  belljar sandbox run -- python3 -c 'print(6*7)'  run one command under glass
  belljar image pull python:3.11                  fetch an image
  belljar runs show                               look at the latest run
  belljar compare latest 7ZBFYHN                  did two runs come to the same?
  belljar doctor                                  can this machine do it?

Exit codes:
  0 success (a failure that the task expects is one)   1 the task did not meet its expectation
  2 wrong usage or task file      3 this machine cannot enforce what was asked
  4 infrastructure failed         5 pinned bytes differ       6 not deterministic
  124 the task timed out          130 interrupted

stdout is data, stderr is talk.";

/// Below `belljar run --help`.
pub(crate) const RUN: &str = "\
Examples:
  belljar run task.yaml
  belljar run tasks/custom-dev/toy_fail_pytest --out /tmp/artifacts
  belljar run task.yaml --json | jq .verdict
  belljar run task.yaml --frozen                  only with the image that belljar.lock pins
  belljar run task.yaml --update-lock             pin the image that is there now

Ctrl-C once ends the run cleanly, with its record (exit 130); twice kills it at once.
With --json, stdout is the run record plus `path`, the folder of the run.";

/// Below `belljar run-task --help`.
pub(crate) const RUN_TASK: &str = "\
Examples:
  belljar run-task --task tasks/custom-dev/toy_fail_pytest/task.yaml --out artifacts";

/// Below `belljar plan --help`.
pub(crate) const PLAN: &str = "\
Examples:
  belljar plan task.yaml
  belljar plan task.yaml --json | jq -r .plan_digest
  belljar plan task.yaml --update-lock            pin the image, and run nothing

The digest covers what is portable: the same task has the same digest on every machine.";

/// Below `belljar compare --help`.
pub(crate) const COMPARE: &str = "\
Examples:
  belljar compare latest 7ZBFYHN
  belljar compare artifacts/runs/A other/runs/B --json | jq .must_not_differ

Exit codes: 0 nothing differs that must not, 1 something does.";

/// Below `belljar build --help`.
pub(crate) const BUILD: &str = "\
Examples:
  belljar build -t app:1 .                            build, and name the image
  belljar build --check .                             only what the policy says of the Dockerfile
  belljar build --verify --json . | jq -r .image      build twice, compare, print the digest
  belljar build --secret id=token,src=token.txt --network outbound .
  belljar build --policy BJ005=warning -f other/Dockerfile .

Base images come from the store. Without --network outbound no step has a network.
stdout is the image's digest. The same input is the same image: every file has the time SOURCE_DATE_EPOCH, or 1970.
Exit codes: 0 built, 1 a RUN failed, 2 the Dockerfile is wrong or refused, 6 two builds differ (--verify).";

/// Below `belljar runs --help`.
pub(crate) const RUNS: &str = "\
Examples:
  belljar runs ls
  belljar runs show latest
  belljar runs prune --keep 20";

/// Below `belljar runs ls --help`.
pub(crate) const RUNS_LS: &str = "\
Examples:
  belljar runs ls
  belljar runs ls --out /tmp/artifacts --json | jq -r '.runs[].outcome'";

/// Below `belljar runs show --help`.
pub(crate) const RUNS_SHOW: &str = "\
Examples:
  belljar runs show                       the latest run
  belljar runs show 7ZBFYHN -v            with proofs, environment and each connection
  belljar runs show latest --follow       a run that another process is at
  belljar runs show latest --log run_stdout

Control characters of a guest are shown as `·`; the files in logs/ have the exact bytes.";

/// Below `belljar runs prune --help`.
pub(crate) const RUNS_PRUNE: &str = "\
Examples:
  belljar runs prune --keep 20
  belljar runs prune --older-than 7d --dry-run
  belljar runs prune --to-size 5GB

Never removes a run in progress. Exit code 4 when something could not be removed.";

/// Below `belljar doctor --help`.
pub(crate) const DOCTOR: &str = "\
Examples:
  belljar doctor
  belljar doctor --json | jq '.checks[] | select(.status == \"fail\")'

Exit codes: 0 Belljar can run here, 1 it cannot.";

/// Below `belljar conformance --help`.
pub(crate) const CONFORMANCE: &str = "\
Examples:
  belljar conformance
  belljar conformance --image ./debian --table hostile
  belljar conformance --only 'timeout-*' --only hostile/mount
  belljar conformance --list
  belljar conformance --json | jq '.rows[] | select(.result == \"failed\")'

A row passes, fails, is refused (it asks for what cannot be had here, and the engine said so as it must),
or is unmet (the image lacks a program). -v tells every row.
Exit codes: 0 no row failed, 1 a row failed, 3 a row was refused or unmet and --strict was given.";

/// Below `belljar gc --help`.
pub(crate) const GC: &str = "\
Examples:
  belljar gc
  belljar gc --out /tmp/artifacts --json

Removes sandboxes whose keeper is gone, half-made snapshots, half-made folders of runs, and half-made parts
of images. What is in use is left alone.
Exit code 4 when something could not be removed.";

/// Below `belljar sandbox --help`.
pub(crate) const SANDBOX: &str = "\
Examples:
  belljar sandbox run -- python3 -c 'print(6*7)'    one command, in a sandbox of its own
  id=$(belljar sandbox create host)                 a sandbox that lives for an hour
  belljar sandbox exec $id -- sh -c 'echo hi > f'   one command in it, and another
  belljar sandbox exec $id -- cat f
  belljar sandbox cp $id:f .                        files out, or in
  belljar sandbox rm $id

An id may be shortened. `exec`, `run`, `shell` and `wait` end with the exit code of the guest's command;
there 124 means that its time was up, 125 that Belljar itself failed, 126 and 127 that the command could
not be started, 130 that you interrupted it, and 128 + N that signal N ended it.";

/// Below `belljar sandbox create --help`.
pub(crate) const SANDBOX_CREATE: &str = "\
Examples:
  id=$(belljar sandbox create)
  id=$(belljar sandbox create python:3.11)
  id=$(belljar sandbox create ./rootfs --memory 512m --ttl 10m)
  id=$(belljar sandbox create --workspace . )       work in this folder of the host
  id=$(belljar sandbox create --from prepared)      start with the files of a snapshot

It has no network and 2 GiB of memory, 2 processors and 512 processes unless you say otherwise.";

/// Below `belljar sandbox exec --help`.
pub(crate) const SANDBOX_EXEC: &str = "\
Examples:
  belljar sandbox exec $id -- python3 -c 'print(1)'
  tar c src | belljar sandbox exec -i $id -- tar x
  belljar sandbox exec -it $id -- bash
  belljar sandbox exec $id --timeout 10s --memory 256m --json -- ./test
  n=$(belljar sandbox exec -d $id -- ./server); belljar sandbox logs -f $id $n

When the command ends, everything it started is killed. Ctrl-C kills it with all of that (130).
With --json, stdout is one object: how the command ended, what it used, and the first MiB (or the output
limit) of each of its streams as text; bytes that are no text are in `stdout_base64`, `stderr_base64`.
With --detach, 64 MiB of output are kept and the rest is dropped, unless there is an output limit.";

/// Below `belljar sandbox shell --help`.
pub(crate) const SANDBOX_SHELL: &str = "\
Examples:
  belljar sandbox shell $id

The same as `exec -it` with bash, or sh where there is no bash, as a login shell.";

/// Below `belljar sandbox run --help`.
pub(crate) const SANDBOX_RUN: &str = "\
Examples:
  belljar sandbox run -- python3 -c 'print(6*7)'
  belljar sandbox run --image python:3.11 -- python3 -V
  belljar sandbox run --image ./rootfs --workspace . -- make test
  belljar sandbox run --network outbound -- curl -sS https://example.org
  belljar sandbox run -it -- bash

Everything is gone afterwards, apart from what was written to --workspace. Without a command, the image's own
ENTRYPOINT and CMD are run; a command takes the place of both.";

/// Below `belljar sandbox cp --help`.
pub(crate) const SANDBOX_CP: &str = "\
Examples:
  belljar sandbox cp src $id:                       into the working folder
  belljar sandbox cp main.py $id:/tmp/other.py
  belljar sandbox cp $id:/workspace/report.xml .
  belljar sandbox cp $id:out - | tar t              as a tar archive
  tar c . | belljar sandbox cp - $id:in

Folders are copied with all that is in them: into the destination if that is a folder, as the destination
if it does not exist. A path inside without a leading slash starts at the working folder. A name with a
colon in it needs a leading ./ to be a file of the host. Links are copied as links and never followed;
pipes, sockets and devices are left out; set-id bits are not copied.
Copied out, nothing reaches its place before all of it has arrived and was found harmless.";

/// Below `belljar sandbox ls --help`.
pub(crate) const SANDBOX_LS: &str = "\
Examples:
  belljar sandbox ls
  belljar sandbox ls --json | jq -r '.sandboxes[].id'

What is left of sandboxes whose keeper was killed is removed on this occasion.";

/// Below `belljar sandbox inspect --help`.
pub(crate) const SANDBOX_INSPECT: &str = "\
Examples:
  belljar sandbox inspect $id
  belljar sandbox inspect $id -v                    with the whole of each proof
  belljar sandbox inspect $id --json | jq '.controls[] | select(.enforced == \"none\")'";

/// Below `belljar sandbox ps --help`.
pub(crate) const SANDBOX_PS: &str = "\
Examples:
  belljar sandbox ps $id
  belljar sandbox ps $id --json | jq '.commands[] | select(.state == \"running\").number'";

/// Below `belljar sandbox logs --help`.
pub(crate) const SANDBOX_LOGS: &str = "\
Examples:
  belljar sandbox logs $id 3
  belljar sandbox logs $id 3 --follow --timestamps
  belljar sandbox logs $id 3 --json --since 41      one object per line: what came after piece 41

The guest's stdout goes to stdout, its stderr to stderr, byte for byte. Each piece of output has a
sequence number, so a reader that went away can go on where it stopped.";

/// Below `belljar sandbox wait --help`.
pub(crate) const SANDBOX_WAIT: &str = "\
Examples:
  belljar sandbox wait $id 3; echo $?
  belljar sandbox wait $id 3 --json | jq .ending";

/// Below `belljar sandbox signal --help`.
pub(crate) const SANDBOX_SIGNAL: &str = "\
Examples:
  belljar sandbox signal $id 3                      TERM, to its first process
  belljar sandbox signal $id 3 HUP
  belljar sandbox signal $id 3 --tree               kill it and everything it started";

/// Below `belljar sandbox extend --help`.
pub(crate) const SANDBOX_EXTEND: &str = "\
Examples:
  belljar sandbox extend $id 2h";

/// Below `belljar sandbox fork --help`.
pub(crate) const SANDBOX_FORK: &str = "\
Examples:
  other=$(belljar sandbox fork $id)

The two share nothing from then on. Processes are not copied; they stand still while the files are.";

/// Below `belljar sandbox snapshot --help`.
pub(crate) const SANDBOX_SNAPSHOT: &str = "\
Examples:
  belljar sandbox snapshot $id prepared
  belljar sandbox snapshot --list
  belljar sandbox snapshot --remove prepared";

/// Below `belljar sandbox rm --help`.
pub(crate) const SANDBOX_RM: &str = "\
Examples:
  belljar sandbox rm $id
  belljar sandbox rm --all

Exit codes: 2 when there is no such sandbox, 4 when something could not be removed.";

/// Below `belljar image --help`.
pub(crate) const IMAGE: &str = "\
Examples:
  belljar image pull python:3.11
  belljar sandbox run --image python:3.11 -- python3 -V
  belljar image ls
  belljar image import root.tar.zst app:1
  belljar image bootstrap tools git python3         without a registry
  belljar image prune --budget 20GB

Images are kept in one store for each user, without a daemon; docs/images.md tells what an image may be.";

/// Below `belljar image pull --help`.
pub(crate) const IMAGE_PULL: &str = "\
Examples:
  belljar image pull python:3.11
  belljar image pull registry.example:5000/team/app@sha256:…
  belljar image pull python:3.11 --budget 10GB --json | jq -r .repo_digests[]

What is there already is not transferred, and a pull that was killed goes on where it was.
Credentials come from Docker's config.json (DOCKER_CONFIG).
Exit codes: 2 no such image, 3 its files belong to users whom you cannot give files to (--squash),
4 the registry denies it or cannot be reached.";

/// Below `belljar image push --help`.
pub(crate) const IMAGE_PUSH: &str = "\
Examples:
  belljar image push registry.example:5000/team/app:1
  belljar image push app:1 registry.example:5000/team/app:1

The layers go as they came, so the image keeps its digest.";

/// Below `belljar image ls --help`.
pub(crate) const IMAGE_LS: &str = "\
Examples:
  belljar image ls
  belljar image ls --json | jq -r '.images[].names[]'";

/// Below `belljar image inspect --help`.
pub(crate) const IMAGE_INSPECT: &str = "\
Examples:
  belljar image inspect python:3.11
  belljar image inspect 3f2a1b4c5d --json | jq .config.config.Env";

/// Below `belljar image tag --help`.
pub(crate) const IMAGE_TAG: &str = "\
Examples:
  belljar image tag python:3.11 registry.example:5000/base:1
  belljar image tag sha256:3f2a1b4c5d app:1";

/// Below `belljar image rm --help`.
pub(crate) const IMAGE_RM: &str = "\
Examples:
  belljar image rm app:1
  belljar image rm 3f2a1b4c5d

An image with several names loses the one that is given; with its last name, or by its digest, the image
goes, and the layers that no other image needs. An image in use stays (exit code 2).";

/// Below `belljar image prune --help`.
pub(crate) const IMAGE_PRUNE: &str = "\
Examples:
  belljar image prune
  belljar image prune --budget 20GB
  belljar image prune --budget 0 --everything

Without a budget no image goes, only what none needs. With one, compressed layers go first, then images
that were not used for longest. Images in use stay, and those that cannot be fetched again, unless you say
--everything.";

/// Below `belljar image du --help`.
pub(crate) const IMAGE_DU: &str = "\
Examples:
  belljar image du
  belljar image du --json | jq .bytes";

/// Below `belljar image fsck --help`.
pub(crate) const IMAGE_FSCK: &str = "\
Examples:
  belljar image fsck
  belljar image fsck --deep --repair --fetch

A damaged layer is unpacked again from its compressed bytes; what cannot be mended is removed and named, and
with --fetch pulled again. Exit codes: 0 everything is as it should be (now), 4 something is not.";

/// Below `belljar image import --help`.
pub(crate) const IMAGE_IMPORT: &str = "\
Examples:
  belljar image import root.tar.zst app:1           a root file system
  belljar image import ./rootfs app:1               the same as a folder
  belljar image import saved.tar app:1              what docker save or an OCI archive holds
  belljar image import oci:layout:v1 app:1          one image of a layout
  belljar image import docker:app:1 app:1           from the local Docker
  docker export box | belljar image import - box:1";

/// Below `belljar image export --help`.
pub(crate) const IMAGE_EXPORT: &str = "\
Examples:
  belljar image export app:1 app.tar
  belljar image export app:1 - | docker load
  belljar image export app:1 layout --format layout

The same image gives the same bytes.";

/// Below `belljar image bootstrap --help`.
pub(crate) const IMAGE_BOOTSTRAP: &str = "\
Examples:
  belljar image bootstrap debian:12
  belljar image bootstrap tools git python3 procps
  belljar image bootstrap tools git --mirror http://mirror.example/debian --variant apt

Needs mmdebstrap and Debian's archive or a mirror of it, and no registry. With the same packages in the
archive the same image is made: no file is newer than SOURCE_DATE_EPOCH, or 1970 where that is not set.";

/// Below `belljar schema --help`.
pub(crate) const SCHEMA: &str = "\
Examples:
  belljar schema task > task.schema.json
  belljar schema run-record
  belljar schema lock";

/// Below `belljar completions --help`.
pub(crate) const COMPLETIONS: &str = "\
Examples:
  belljar completions bash > ~/.local/share/bash-completion/completions/belljar
  belljar completions zsh > ~/.zfunc/_belljar
  belljar completions fish > ~/.config/fish/completions/belljar.fish";
