//! What is on disk means to a real overlay what the layer meant.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::item::{file, folder, layer};
use super::tree::{options, unpack_at};

/// Mounts layers over each other, in a mount namespace of its own, and lists what is seen.
fn seen(place: &Path, layers: &[Vec<u8>]) -> Vec<String> {
    for (number, layer) in layers.iter().enumerate() {
        let into = place.join(number.to_string());
        fs::create_dir(&into).unwrap();
        unpack_at(layer, &into, &options()).unwrap();
    }
    fs::create_dir(place.join("seen")).unwrap();
    let lower: Vec<String> = (0..layers.len()).rev().map(|number| number.to_string()).collect();
    let script = format!(
        "mount -t overlay overlay -o userxattr,lowerdir={} seen && cd seen && find . -mindepth 1 | sort",
        lower.join(":")
    );
    let output =
        Command::new("unshare").args(["-m", "sh", "-c", &script]).current_dir(place).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn an_overlay_hides_what_layers_hide() {
    let lower = layer(&[
        folder("keep"),
        file("keep/a", "x"),
        file("keep/b", "x"),
        folder("gone"),
        file("gone/a", "x"),
        folder("anew"),
        file("anew/old", "x"),
        folder("again"),
        file("again/old", "x"),
        folder("again/in"),
        file("again/in/old", "x"),
    ]);
    let upper = layer(&[
        file("keep/.wh.b", ""),
        file(".wh.gone", ""),
        folder("anew"),
        file("anew/.wh..wh..opq", ""),
        file("anew/new", "x"),
        file("again/in/new", "x"),
        file(".wh.again", ""),
        file(".wh.never", ""),
    ]);
    let place = tempfile::tempdir().unwrap();
    let expected = ["./again", "./again/in", "./again/in/new", "./anew", "./anew/new", "./keep", "./keep/a"];
    assert_eq!(seen(place.path(), &[lower, upper]), expected);
}

#[test]
fn what_a_stranger_notes_for_the_overlay_means_nothing() {
    let lower = layer(&[folder("a"), file("a/secret", "x"), file("f", "x")]);
    let upper = layer(&[
        folder("a").record("SCHILY.xattr.user.overlay.opaque", "y"),
        folder("b").record("SCHILY.xattr.user.overlay.redirect", "/a"),
        folder("a/c").record("SCHILY.xattr.trusted.overlay.opaque", "y"),
    ]);
    let place = tempfile::tempdir().unwrap();
    assert_eq!(seen(place.path(), &[lower, upper]), ["./a", "./a/c", "./a/secret", "./b", "./f"]);
}

#[test]
fn a_layer_that_hides_all_below_says_so_because_overlays_do_not_look() {
    let place = tempfile::tempdir().unwrap();
    let unpacked = unpack_at(&layer(&[file(".wh..wh..opq", "")]), place.path(), &options()).unwrap();
    assert!(unpacked.opaque);
}
