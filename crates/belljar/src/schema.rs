//! The JSON Schema of a task file, made from the types and from the table of keys and aliases.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use crate::spec::keys::{Key, PLACES, Place, SHORTCUTS};
use crate::spec::{TaskSpec, compat};

/// The JSON Schema of a task file: pretty, ending in a newline.
pub fn task_schema() -> String {
    let mut schema = SchemaGenerator::default().into_root_schema_for::<TaskSpec>().to_value();
    for place in PLACES {
        if let Some(object) = object_of(&mut schema, place) {
            add_aliases(object, place);
        }
    }
    let shortcuts = shortcuts(&schema);
    if let Some(top) = schema.as_object_mut() {
        add_shortcuts(top, shortcuts);
    }
    format!("{schema:#}\n")
}

/// The JSON Schema of `belljar.lock`, read as TOML.
pub fn lock_schema() -> Value {
    let digest = json!({ "type": "string", "pattern": "^sha256:[0-9a-f]{64}$" });
    let text = json!({ "type": "string" });
    let layers = json!({
        "description": "The layers, numbered from 0, the lowest first.",
        "type": "object",
        "patternProperties": { "^(0|[1-9][0-9]{0,2})$": digest },
        "additionalProperties": false,
    });
    let repositories = json!({
        "description": "Where a registry has such an image: `name@sha256:…`.",
        "type": "object",
        "propertyNames": { "pattern": "@sha256:[0-9a-f]{64}$" },
        "additionalProperties": { "const": true },
    });
    let image = [("config_digest", digest.clone())];
    let found = [
        ("diff_ids", layers),
        ("repo_digests", repositories),
        ("manifest_digest", digest.clone()),
        ("docker_image_id", digest.clone()),
    ];
    let built = [("context_hash", digest.clone()), ("config_digest", digest.clone())];
    let kinds = [
        lock_entry("image", "An image by what names it everywhere.", &image, &found),
        lock_entry("build", "An image that was built, with what it was built from.", &built, &found),
        lock_entry(
            "directory",
            "A root directory by its content.",
            &[("content_digest", digest.clone())],
            &[],
        ),
        lock_entry(
            "host",
            "The machine that the lock was written on: for people, and pinned by nothing.",
            &[("system", text), ("fingerprint", digest)],
            &[],
        ),
    ];
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Belljar lock",
        "description": "What the images of tasks are, by reference and platform.",
        "type": "object",
        "properties": {
            "version": { "const": belljar_image::lock::LOCK_FORMAT },
            "images": {
                "description": "By reference as written in the task; paths start at the lock's folder.",
                "type": "object",
                "additionalProperties": {
                    "description": "By platform, such as `linux/amd64`.",
                    "type": "object",
                    "additionalProperties": { "oneOf": kinds },
                },
            },
        },
        "required": ["version"],
        "additionalProperties": false,
    })
}

fn lock_entry(kind: &str, about: &str, required: &[(&str, Value)], optional: &[(&str, Value)]) -> Value {
    let named = required.iter().chain(optional).map(|(name, schema)| ((*name).to_owned(), schema.clone()));
    let properties: Object = named.chain([("kind".to_owned(), json!({ "const": kind }))]).collect();
    let names: Vec<&str> = std::iter::once("kind").chain(required.iter().map(|(name, _)| *name)).collect();
    json!({
        "description": about,
        "type": "object",
        "properties": properties,
        "required": names,
        "additionalProperties": false,
    })
}

type Object = Map<String, Value>;

/// The schema of the object that a place is.
fn object_of<'a>(schema: &'a mut Value, place: &Place) -> Option<&'a mut Object> {
    match place.path {
        "" => schema.as_object_mut(),
        _ => schema.get_mut("$defs")?.get_mut(place.definition)?.as_object_mut(),
    }
}

/// Each alias is a property like its key; never two names of one key together.
fn add_aliases(object: &mut Object, place: &Place) {
    let mut rules = Vec::new();
    for key in place.keys.iter().filter(|key| !key.aliases.is_empty()) {
        copy_property(object, key);
        rules.extend(forbidden_pairs(key));
        rules.extend(any_required(object, key));
    }
    if !rules.is_empty() {
        object.insert("allOf".to_owned(), Value::Array(rules));
    }
}

fn copy_property(object: &mut Object, key: &Key) {
    let Some(properties) = object.get_mut("properties").and_then(Value::as_object_mut) else { return };
    let Some(original) = properties.get(key.name).cloned() else { return };
    for alias in key.aliases {
        let text = format!("Alias of `{}`.", key.name);
        properties.insert((*alias).to_owned(), renamed(original.clone(), &text));
    }
}

fn renamed(mut property: Value, description: &str) -> Value {
    if let Some(object) = property.as_object_mut() {
        object.remove("default");
        object.insert("description".to_owned(), json!(description));
    }
    property
}

fn forbidden_pairs(key: &Key) -> Vec<Value> {
    let names: Vec<&str> = std::iter::once(key.name).chain(key.aliases.iter().copied()).collect();
    let pairs = names.iter().enumerate().flat_map(|(index, first)| {
        names.iter().skip(index + 1).map(move |second| json!({ "not": { "required": [first, second] } }))
    });
    pairs.collect()
}

/// A required key with aliases: any one of the names is required.
fn any_required(object: &mut Object, key: &Key) -> Option<Value> {
    let required = object.get_mut("required")?.as_array_mut()?;
    let index = required.iter().position(|name| name == key.name)?;
    required.remove(index);
    let names = std::iter::once(&key.name).chain(key.aliases);
    Some(json!({ "anyOf": names.map(|name| json!({ "required": [name] })).collect::<Vec<_>>() }))
}

/// The shortcuts at the top, each like the key it stands for.
fn shortcuts(schema: &Value) -> Vec<(&'static str, Value)> {
    let property = |target: &str| {
        let (path, name) = target.split_once('.')?;
        let place = PLACES.iter().find(|place| place.path == path)?;
        schema.get("$defs")?.get(place.definition)?.get("properties")?.get(name).cloned()
    };
    let schema_of = |name: &str, target: &str| match name {
        "expected_fail" => json!({ "type": "boolean" }),
        _ => property(target).unwrap_or_default(),
    };
    let describe = |name: &str, target: &str| match name {
        "expected_fail" => "`true` is `expect.result: fail`, `false` is `pass`.".to_owned(),
        _ => format!("Short for `{target}`."),
    };
    SHORTCUTS
        .iter()
        .map(|s| (s.name, renamed(schema_of(s.name, s.target), &describe(s.name, s.target))))
        .collect()
}

fn add_shortcuts(top: &mut Object, shortcuts: Vec<(&'static str, Value)>) {
    if let Some(properties) = top.get_mut("properties").and_then(Value::as_object_mut) {
        properties.extend(shortcuts.into_iter().map(|(name, schema)| (name.to_owned(), schema)));
    }
    let command = Key { name: "run", aliases: &["test_command"] };
    if let Some(rule) = any_required(top, &command) {
        top.insert("allOf".to_owned(), json!([rule]));
    }
}

/// A commit: digits without quotes are a number to YAML.
pub(crate) fn text_or_number(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["string", "number"] })
}

/// Environment variables.
pub(crate) fn variables(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "propertyNames": { "pattern": "^[A-Za-z_][A-Za-z0-9_]*$" },
        "additionalProperties": { "type": ["string", "number", "boolean"] },
    })
}

/// One exit code or several.
pub(crate) fn exit_codes(_: &mut SchemaGenerator) -> Schema {
    let code = json!({ "type": "integer", "minimum": 0, "maximum": 255 });
    json_schema!({ "anyOf": [code.clone(), { "type": "array", "items": code, "minItems": 1 }] })
}

/// The name of a built-in fix, or a fix of the task's own.
pub(crate) fn compat_steps(generator: &mut SchemaGenerator) -> Schema {
    let names: Vec<&str> = compat::FIXES.iter().map(|fix| fix.name).collect();
    let own = generator.subschema_for::<OwnFix>();
    json_schema!({ "type": "array", "items": { "anyOf": [{ "type": "string", "enum": names }, own] } })
}

/// A fix of the task's own.
#[derive(JsonSchema)]
#[schemars(rename = "CompatStep", deny_unknown_fields)]
#[expect(dead_code, reason = "only its schema is used")]
struct OwnFix {
    /// Name of the fix, for logs.
    #[schemars(regex(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"))]
    name: String,
    /// Shell command, run in the workdir.
    #[schemars(length(min = 1))]
    command: String,
}

/// The setup, or only its commands.
pub(crate) fn setup_or_commands(generator: &mut SchemaGenerator) -> Schema {
    let whole = generator.subschema_for::<crate::spec::SetupSpec>();
    json_schema!({ "anyOf": [whole, { "type": "array", "items": { "type": "string", "minLength": 1 } }] })
}

/// The run, or only its command.
pub(crate) fn run_or_command(generator: &mut SchemaGenerator) -> Schema {
    let whole = generator.subschema_for::<crate::spec::RunSpec>();
    json_schema!({ "anyOf": [whole, { "type": "string", "minLength": 1 }] })
}
