//! What the environment says about registries and the store.

use belljar::limits::Bytes;
use belljar::{Code, Fault};
use belljar_image::credentials::Credentials;
use belljar_image::reference::DEFAULT_REGISTRY;
use belljar_image::registry::Settings;

use crate::environment::{
    self, BELLJAR_IMAGE_BUDGET, BELLJAR_REGISTRY_CA, BELLJAR_REGISTRY_HTTP, BELLJAR_REGISTRY_MIRROR,
    DOCKER_CONFIG, HOME, HTTP_PROXY, HTTPS_PROXY, NO_PROXY, SOURCE_DATE_EPOCH,
};

/// How registries are spoken to.
pub(crate) fn settings() -> Result<Settings, Fault> {
    let mut settings = Settings {
        plain_http: BELLJAR_REGISTRY_HTTP.parts().into_iter().collect(),
        http_proxy: HTTP_PROXY.in_either_case(),
        https_proxy: HTTPS_PROXY.in_either_case(),
        no_proxy: environment::listed(&NO_PROXY.in_either_case().unwrap_or_default()),
        credentials: Credentials {
            config: DOCKER_CONFIG
                .folder()
                .or_else(|| Some(HOME.folder()?.join(".docker")))
                .map(|folder| folder.join("config.json")),
            environment: environment::passed(&["PATH", "HOME"]),
            ..Credentials::default()
        },
        ..Settings::default()
    };
    if let Some(files) = BELLJAR_REGISTRY_CA.value().filter(|files| !files.is_empty()) {
        settings.authorities = std::env::split_paths(&files).collect();
    }
    for mirror in BELLJAR_REGISTRY_MIRROR.parts() {
        let (registry, host) = mirror.split_once('=').unwrap_or((DEFAULT_REGISTRY, &mirror));
        if registry.is_empty() || host.is_empty() {
            return Err(Fault::new(Code::Usage, format!("BELLJAR_REGISTRY_MIRROR has `{mirror}` in it"))
                .hint("write host[:port] or registry=host[:port], with commas between them"));
        }
        settings.mirrors.entry(registry.to_owned()).or_default().push(host.to_owned());
    }
    Ok(settings)
}

/// How much the store may take.
pub(crate) fn budget() -> Result<Option<u64>, Fault> {
    let Some(text) = BELLJAR_IMAGE_BUDGET.text() else { return Ok(None) };
    match text.parse::<Bytes>() {
        Ok(Bytes(bytes)) => Ok(Some(bytes)),
        Err(error) => Err(Fault::new(Code::Usage, format!("BELLJAR_IMAGE_BUDGET is no size: {error}"))),
    }
}

/// The latest time of files in images that are made here.
pub(crate) fn epoch() -> Result<i64, Fault> {
    let Some(text) = SOURCE_DATE_EPOCH.text() else { return Ok(0) };
    let wrong =
        || Fault::new(Code::Usage, format!("SOURCE_DATE_EPOCH is `{text}`, which is no number of seconds"));
    text.parse::<i64>().ok().filter(|seconds| *seconds >= 0).ok_or_else(wrong)
}
