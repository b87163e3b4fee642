//! Servers that are slow, wrong, full, or that lie.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belljar_image::credentials::Secret;
use belljar_image::digest::Digest;
use belljar_image::oci::media;
use belljar_image::reference::Name;
use belljar_image::registry::{Progress, Pulled, RegistryError, Settings, Watch};

use crate::folder::Folder;
use crate::sample::{Sample, client, here, name, settings, watch};
use crate::server::{Answer, Asked, Server};

/// What an honest registry would say.
fn honest(sample: &Sample, asked: &Asked) -> Answer {
    let (rest, last) = asked.path.rsplit_once('/').unwrap();
    if rest.ends_with("manifests") {
        let digest = sample.digest().to_string();
        let known = last == "latest" || last == digest;
        let answer = Answer::new(if known { 200 } else { 404 }, &sample.manifest);
        return answer.header("Content-Type", media::MANIFEST).header("Docker-Content-Digest", &digest);
    }
    let blob = &sample.blobs[&last.parse().unwrap()];
    match asked
        .header("range")
        .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok())
    {
        Some(start) if start < blob.len() => Answer::new(206, &blob[start..])
            .header("Content-Range", &format!("bytes {start}-{}/{}", blob.len() - 1, blob.len())),
        Some(_) => Answer::new(416, b""),
        None => Answer::new(200, blob),
    }
}

fn is_layer(sample: &Sample, asked: &Asked) -> bool {
    asked.path.ends_with(&sample.layers[0].to_string())
}

fn sample() -> Sample {
    Sample::new(&[200_000], "amd64")
}

/// A server that is honest but for what the twist says.
fn twisted(twist: impl Fn(usize, &Asked, &Sample) -> Option<Answer> + Send + Sync + 'static) -> Server {
    let sample = sample();
    Server::start(move |number, asked| {
        twist(number, asked, &sample).unwrap_or_else(|| honest(&sample, asked))
    })
}

fn image(server: &Server) -> Name {
    name(&format!("{}/x", server.address()))
}

fn pull(server: &Server, settings: Settings) -> (Folder, Result<Pulled, RegistryError>) {
    let folder = Folder::new();
    let result = client(settings).pull(&image(server), &here(), &folder, watch());
    (folder, result)
}

fn refused(server: &Server) -> RegistryError {
    let (folder, result) = pull(server, settings());
    assert_eq!(folder.read(sample().digest()), None);
    result.unwrap_err()
}

#[test]
fn an_honest_server_is_understood() {
    let server = twisted(|_, _, _| None);
    let (folder, result) = pull(&server, settings());
    result.unwrap();
    assert_eq!(folder.read(sample().layers[0]).as_ref(), sample().blobs.get(&sample().layers[0]));
}

#[test]
fn a_wait_that_the_registry_asks_for_is_kept_and_told() {
    let server =
        twisted(|number, _, _| (number == 0).then(|| Answer::new(429, b"").header("Retry-After", "1")));
    let (start, told) = (Instant::now(), Mutex::new(Vec::new()));
    let note = |progress| {
        if let Progress::Retry { reason, wait, .. } = progress {
            told.lock().unwrap().push((reason, wait));
        }
    };
    client(settings())
        .pull(&image(&server), &here(), &Folder::new(), Watch { progress: &note, ..watch() })
        .unwrap();
    assert!(start.elapsed() >= Duration::from_secs(1));
    let told = told.into_inner().unwrap();
    assert_eq!((told.len(), told[0].1), (1, Duration::from_secs(1)));
    assert!(told[0].0.contains("rate limited; retry at 2"), "{}", told[0].0);
}

#[test]
fn a_wait_that_is_too_long_is_an_error_at_once() {
    let server = twisted(|_, _, _| {
        Some(
            Answer::new(429, b"")
                .header("Retry-After", "3600")
                .header("RateLimit-Limit", "100;w=21600")
                .header("RateLimit-Remaining", "0;w=21600"),
        )
    });
    let client = client(settings());
    let error = client.resolve(&image(&server), &here(), watch()).unwrap_err();
    let RegistryError::RateLimited { wait, .. } = &error else { panic!("{error}") };
    assert_eq!(*wait, Duration::from_secs(3600));
    assert!(error.to_string().ends_with("(in 3600 seconds)"), "{error}");
    assert_eq!(server.log().len(), 1);
    let allowance = client.allowance(&server.address()).unwrap();
    assert_eq!((allowance.limit, allowance.remaining), (Some(100), Some(0)));
    assert_eq!(allowance.window, Some(Duration::from_secs(21600)));
}

#[test]
fn what_may_go_away_is_tried_again_and_what_stays_is_told() {
    let server = twisted(|number, _, _| [503, 500, 408].get(number).map(|status| Answer::new(*status, b"")));
    pull(&server, settings()).1.unwrap();

    let server =
        twisted(|_, _, _| Some(Answer::new(503, br#"{"errors": [{"code": "X", "message": "full\u0007"}]}"#)));
    let error = client(settings()).resolve(&image(&server), &here(), watch()).unwrap_err();
    assert!(matches!(error, RegistryError::Answered { status: 503, .. }), "{error}");
    assert!(error.to_string().ends_with(": full (X)"), "{error}");
    assert_eq!(server.log().len(), 5);
}

#[test]
fn a_stall_is_ended_and_resumed() {
    let stalled = AtomicBool::new(false);
    let server = twisted(move |_, asked, sample| {
        let now = is_layer(sample, asked) && !stalled.swap(true, Ordering::SeqCst);
        now.then(|| Answer {
            length: Some(200_000),
            hang: true,
            ..Answer::new(200, &sample.blobs[&sample.layers[0]][..50_000])
        })
    });
    let quick = Settings { stall: Duration::from_millis(200), ..settings() };
    pull(&server, quick).1.unwrap();
    assert!(server.log().iter().any(|asked| asked.header("range") == Some("bytes=50000-")));
}

#[test]
fn a_stall_without_end_is_told_and_can_be_stopped() {
    let server = twisted(|_, asked, sample| {
        is_layer(sample, asked).then(|| Answer { length: Some(200_000), hang: true, ..Answer::new(200, b"") })
    });
    let quick = Settings { stall: Duration::from_millis(100), attempts: 2, ..settings() };
    let error = pull(&server, quick).1.unwrap_err();
    assert!(matches!(error, RegistryError::Stalled { .. }), "{error}");

    let stop = AtomicBool::new(false);
    let slow = client(Settings { stall: Duration::from_secs(3600), ..settings() });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let before = server.log().len();
            while !server.log()[before..].iter().any(|asked| is_layer(&sample(), asked)) {
                std::thread::sleep(Duration::from_millis(5));
            }
            stop.store(true, Ordering::Release);
        });
        let watch = Watch { cancel: &stop, ..watch() };
        let error = slow.pull(&image(&server), &here(), &Folder::new(), watch).unwrap_err();
        assert!(matches!(error, RegistryError::Cancelled), "{error}");
    });
}

#[test]
fn another_host_is_not_told_who_asks() {
    let store = {
        let sample = sample();
        Server::start(move |_, _| Answer::new(200, &sample.blobs[&sample.layers[0]]))
    };
    let target = format!("http://{}/signed?key=1", store.address());
    let server = twisted(move |_, asked, sample| {
        if asked.header("authorization").is_none() {
            return Some(Answer::new(401, b"").header("WWW-Authenticate", "Basic realm=\"x\""));
        }
        is_layer(sample, asked).then(|| Answer::new(307, b"").header("Location", &target))
    });
    let mut settings = settings();
    let secret = Secret::Password { user: "ann".to_owned(), password: "pw".to_owned() };
    settings.credentials.given.insert(server.address(), secret);
    pull(&server, settings).1.unwrap();
    let asked = store.log();
    assert_eq!((asked.len(), asked[0].path.as_str()), (1, "/signed?key=1"));
    assert_eq!(asked[0].header("authorization"), None);
}

#[test]
fn redirects_end() {
    let server = twisted(|_, _, _| Some(Answer::new(302, b"").header("Location", "/v2/again")));
    let error = client(settings()).resolve(&image(&server), &here(), watch()).unwrap_err();
    assert!(error.to_string().contains("on and on"), "{error}");
    for location in ["file:///etc/passwd", "ftp://x/", ""] {
        let server = twisted(move |_, _, _| Some(Answer::new(302, b"").header("Location", location)));
        let error = client(settings()).resolve(&image(&server), &here(), watch()).unwrap_err();
        assert!(matches!(error, RegistryError::Redirect { .. }), "{location}: {error}");
    }
}

#[test]
fn a_manifest_without_end_is_refused() {
    for length in [None, Some(5 << 20)] {
        let server = twisted(move |_, asked, _| {
            let body = if length.is_some() { Vec::new() } else { vec![b' '; 5 << 20] };
            asked.path.contains("manifests").then(|| Answer { length, ..Answer::new(200, &body) })
        });
        let error = refused(&server);
        assert!(matches!(error, RegistryError::TooLarge { limit: 4_194_304, .. }), "{error}");
    }
}

#[test]
fn wrong_sizes_and_wrong_digests_are_refused() {
    let longer = twisted(|_, asked, sample| {
        let mut blob = sample.blobs[&sample.layers[0]].clone();
        blob.push(0);
        is_layer(sample, asked).then(|| Answer::new(200, &blob))
    });
    let error = refused(&longer);
    assert!(matches!(error, RegistryError::WrongSize { expected: 200_000, found: 200_001, .. }), "{error}");

    let other =
        twisted(|_, asked, sample| is_layer(sample, asked).then(|| Answer::new(200, &vec![7; 200_000])));
    let error = refused(&other);
    assert!(matches!(error, RegistryError::WrongDigest { .. }), "{error}");

    let said = twisted(|_, asked, sample| {
        let digest = Digest::of(b"another").to_string();
        let lie = Answer::new(200, &sample.manifest).header("Docker-Content-Digest", &digest);
        asked.path.contains("manifests").then_some(lie)
    });
    let error = refused(&said);
    assert!(matches!(error, RegistryError::WrongDigest { .. }), "{error}");

    let pinned = twisted(|_, asked, _| asked.path.contains("manifests").then(|| Answer::new(200, b"{}")));
    let error =
        client(settings()).resolve(&image(&pinned).pinned(sample().digest()), &here(), watch()).unwrap_err();
    assert!(matches!(error, RegistryError::WrongDigest { .. }), "{error}");
}

#[test]
fn a_range_that_is_not_served_starts_again() {
    let layer = sample().layers[0];
    let begun = sample().blobs[&layer][..1000].to_vec();
    type Twist = fn(&Asked, &Sample) -> Option<Answer>;
    let twists: [Twist; 3] = [
        // It sends all of it.
        |asked, sample| asked.header("range").map(|_| Answer::new(200, &sample.blobs[&sample.layers[0]])),
        // It has no such range.
        |asked, _| asked.header("range").map(|_| Answer::new(416, b"")),
        // It sends another part.
        |asked, sample| {
            let blob = &sample.blobs[&sample.layers[0]];
            asked
                .header("range")
                .map(|_| Answer::new(206, blob).header("Content-Range", "bytes 0-199999/200000"))
        },
    ];
    for twist in twists {
        let server = twisted(move |_, asked, sample| twist(asked, sample));
        let folder = Folder::new();
        std::fs::write(folder.part(layer), &begun).unwrap();
        client(settings()).pull(&image(&server), &here(), &folder, watch()).unwrap();
        assert_eq!(folder.read(layer).as_ref(), sample().blobs.get(&layer));
    }
}

#[test]
fn what_is_no_image_is_told() {
    let kinds: [(&str, &[u8], &str); 4] = [
        ("application/vnd.docker.distribution.manifest.v1+prettyjws", b"{}", "schema version 1"),
        ("text/html", b"<html>", "not understood"),
        (media::MANIFEST, b"[]", "not understood"),
        (media::MANIFEST, br#"{"schemaVersion": 2, "manifests": []}"#, "does not say clearly"),
    ];
    for (kind, body, reason) in kinds {
        let server = twisted(move |_, asked, _| {
            asked.path.contains("manifests").then(|| Answer::new(200, body).header("Content-Type", kind))
        });
        let error = refused(&server).to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn an_upload_that_the_registry_names_otherwise_is_an_error() {
    let server = Server::start(|_, asked| match asked.method.as_str() {
        "HEAD" => Answer::new(404, b""),
        "POST" => Answer::new(202, b"").header("Location", "/v2/x/blobs/uploads/1?state=a"),
        "PATCH" => {
            let last = asked.body.len() - 1;
            Answer::new(202, b"")
                .header("Location", "/v2/x/blobs/uploads/1?state=b")
                .header("Range", &format!("0-{last}"))
        }
        _ => Answer::new(201, b"").header("Docker-Content-Digest", &Digest::of(b"other").to_string()),
    });
    let sample = sample();
    let error =
        client(settings()).push(&image(&server), &sample.manifest, &sample, None, watch()).unwrap_err();
    assert!(matches!(error, RegistryError::WrongDigest { .. }), "{error}");
    let put = server.log().into_iter().find(|asked| asked.method == "PUT").unwrap();
    assert!(put.path.starts_with("/v2/x/blobs/uploads/1?state=b&digest=sha256%3A"), "{}", put.path);
}

#[test]
fn an_upload_that_was_cut_goes_on_where_the_registry_says() {
    let taken: Mutex<Vec<u8>> = Mutex::default();
    let server = Server::start(move |_, asked| {
        let place = |answer: Answer| answer.header("Location", "/v2/x/blobs/uploads/1");
        let mut taken = taken.lock().unwrap();
        match asked.method.as_str() {
            "HEAD" => Answer::new(404, b""),
            "POST" => place(Answer::new(202, b"")),
            "PATCH" if taken.is_empty() => {
                taken.extend(&asked.body[..50_000.min(asked.body.len() - 1)]);
                Answer::new(500, b"")
            }
            "GET" => place(Answer::new(204, b"")).header("Range", &format!("0-{}", taken.len() - 1)),
            "PATCH" => {
                taken.extend(&asked.body);
                place(Answer::new(202, b"")).header("Range", &format!("0-{}", taken.len() - 1))
            }
            _ => {
                let digest = Digest::of(&taken).to_string();
                taken.clear();
                let right = asked.path.contains("manifests") || asked.path.ends_with(&digest[7..]);
                Answer::new(if right { 201 } else { 400 }, b"")
            }
        }
    });
    let sample = sample();
    let one = client(Settings { threads: 1, ..settings() });
    one.push(&image(&server), &sample.manifest, &sample, None, watch()).unwrap();
    let ranges: Vec<_> =
        server.log().iter().filter_map(|asked| Some(asked.header("content-range")?.to_owned())).collect();
    assert!(ranges.contains(&"50000-199999".to_owned()), "{ranges:?}");
    assert_eq!(server.log().iter().filter(|asked| asked.method == "POST").count(), 2);
}

#[test]
fn a_source_that_fails_is_told_as_such() {
    struct Short(Sample);
    impl belljar_image::registry::Origin for Short {
        fn open(&self, digest: Digest, offset: u64) -> std::io::Result<Box<dyn std::io::Read + '_>> {
            Ok(Box::new(&self.0.blobs[&digest][offset as usize..50]))
        }
    }
    let server = Server::start(|_, asked| match asked.method.as_str() {
        "HEAD" => Answer::new(404, b""),
        _ => Answer::new(202, b"").header("Location", "/v2/x/blobs/uploads/1"),
    });
    let short = Short(sample());
    let error =
        client(settings()).push(&image(&server), &short.0.manifest, &short, None, watch()).unwrap_err();
    assert!(matches!(error, RegistryError::Source { .. }), "{error}");
    assert!(error.to_string().contains("fewer bytes"), "{error}");
}

#[test]
fn a_body_that_only_drips_is_given_up() {
    for manifests in [true, false] {
        let server = twisted(move |_, asked, sample| {
            let due = if manifests { asked.path.contains("manifests") } else { is_layer(sample, asked) };
            due.then(|| Answer { drip: Some(Duration::from_millis(20)), ..honest(sample, asked) })
        });
        let quick = Settings { stall: Duration::from_millis(200), attempts: 2, ..settings() };
        let error = pull(&server, quick).1.unwrap_err();
        assert!(matches!(error, RegistryError::Stalled { .. }), "{error}");
    }
}
