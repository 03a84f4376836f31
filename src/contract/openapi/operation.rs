//! The operations of a document that are contracts, and what each says beyond its schemas.
//!
//! `x-hermes` holds the members of a contract that OpenAPI has no place for. It may stand on the
//! operation, on its path and at the root; member by member the nearest wins. An operation is
//! a contract if it or its path has one. One at the root alone makes the document's only
//! operation with a body a contract.

use http::Method;
use serde_json::{Map, Value};

use super::{
    convert::Said,
    document::{Document, step},
};
use crate::contract::{Problem, Problems, pointer::shorten};

/// The most contracts one document may hold.
const MAX_OPERATIONS: usize = 256;
/// What an operation says beyond OpenAPI.
pub const EXTENSION: &str = "x-hermes";
/// The methods OpenAPI knows, and which of them call contracts.
const METHODS: [(&str, Option<Method>); 8] = [
    ("delete", None),
    ("get", None),
    ("head", None),
    ("options", None),
    ("patch", Some(Method::PATCH)),
    ("post", Some(Method::POST)),
    ("put", Some(Method::PUT)),
    ("trace", None),
];

type Members = Map<String, Value>;

/// An operation that is a contract.
pub struct Operation<'d> {
    pub method: Method,
    pub path: &'d str,
    pub at: String,
    pub members: &'d Members,
    pub item: &'d Members,
    /// Every `x-hermes` that counts, the nearest first, with its place.
    pub said: Vec<(&'d Members, String)>,
}

impl<'d> Operation<'d> {
    /// Finds what the nearest `x-hermes` says, and where.
    pub fn extension(&self, name: &str) -> Option<(&'d Value, String)> {
        let mut all = self.said.iter();
        all.find_map(|(members, at)| Some((members.get(name)?, format!("{at}/{}", step(name)))))
    }

    pub fn id(&self) -> Option<&'d str> {
        self.extension("id")?.0.as_str()
    }

    /// Returns the paths that the servers of the document put before every path.
    pub fn bases(&self, document: &'d Document) -> impl Iterator<Item = &'d str> {
        let near = [self.members.get("servers"), self.item.get("servers")];
        let servers = near.into_iter().flatten().next();
        let servers = servers.or_else(|| document.get("servers"));
        let servers = servers.and_then(Value::as_array).into_iter().flatten();
        let urls = servers.filter_map(|server| server.get("url")?.as_str());
        let bases = urls.map(|url| match url.split_once("://") {
            Some((_, rest)) => rest.find('/').map_or("", |at| &rest[at..]),
            None => url,
        });
        let bases = bases.map(|base| base.trim_end_matches('/'));
        bases.filter(|base| !base.is_empty())
    }
}

/// Lists the operations that are contracts.
pub fn list(document: &Document) -> Result<Vec<Operation<'_>>, Problems> {
    let mut said = Said::default();
    let paths = document.get("paths").and_then(Value::as_object);
    let Some(paths) = paths else {
        let remedy = "write an object of paths, each with its operations";
        return Err(Problem::new("openapi", "/paths", "there are no paths", remedy).into());
    };
    let root = document.get(EXTENSION);
    let root = root.and_then(|root| extension(root, "", &mut said));
    let mut marked = Vec::new();
    let mut others = Vec::new();
    for (path, item) in paths.iter().filter(|(path, _)| path.starts_with('/')) {
        let at = format!("/paths/{}", step(path));
        match document.object(item, &at) {
            Ok((item, at)) => {
                let found = of_path(path, item, &at, root.as_ref(), &mut said);
                let (these, those): (Vec<_>, Vec<_>) = found.partition(|(_, is_marked)| *is_marked);
                marked.extend(these.into_iter().map(|(operation, _)| operation));
                others.extend(those.into_iter().map(|(operation, _)| operation));
            }
            Err(problem) => said.faults.push(problem),
        }
    }
    if marked.is_empty() && root.is_some_and(|(members, _)| members.contains_key("id")) {
        match others.len() {
            1 => marked = others,
            count => {
                let what = format!(
                    "the root's \"{EXTENSION}\" names one contract, but there are {count} operations with a body"
                );
                let remedy = format!("put \"{EXTENSION}\" on the operation it means");
                said.fault("no-contract", "/x-hermes", &what, &remedy);
            }
        }
    } else if marked.is_empty() && said.faults.is_empty() {
        let what = format!("no operation says with \"{EXTENSION}\" that it is a contract");
        let remedy = "add to the operation, for example: \"x-hermes\": {\"id\": \"fraud-detection-v1.0\", \"version\": \"1.0.0\", \"constraints\": {\"timeout_ms\": 500}}";
        said.fault("no-contract", "/paths", &what, remedy);
    }
    if marked.len() > MAX_OPERATIONS {
        let what = format!("more than {MAX_OPERATIONS} operations are contracts");
        said.fault("oversize", "/paths", &what, "split the document");
    }
    twice(&marked, &mut said);
    said.faults.or(marked)
}

/// Returns a path's operations with a body, and whether each is marked as a contract.
fn of_path<'d>(
    path: &'d str,
    item: &'d Members,
    at: &str,
    root: Option<&(&'d Members, String)>,
    said: &mut Said,
) -> std::vec::IntoIter<(Operation<'d>, bool)> {
    let of_item = item
        .get(EXTENSION)
        .and_then(|value| extension(value, at, said));
    let mut found = Vec::new();
    for (name, method) in METHODS {
        let Some(Value::Object(members)) = item.get(name) else {
            continue;
        };
        let at = format!("{at}/{name}");
        let own = members.get(EXTENSION);
        let own = own.and_then(|value| extension(value, &at, said));
        let Some(method) = method else {
            if own.is_some() {
                let what = "a contract is called by POST, PUT or PATCH";
                let remedy = format!("take \"{EXTENSION}\" away, or offer the operation by POST");
                said.fault("method", at, what, &remedy);
            }
            continue;
        };
        let is_marked = own.is_some() || of_item.is_some();
        let all = [own, of_item.clone(), root.cloned()];
        let operation = Operation {
            method,
            path,
            at,
            members,
            item,
            said: all.into_iter().flatten().collect(),
        };
        found.push((operation, is_marked));
    }
    found.into_iter()
}

fn extension<'d>(value: &'d Value, at: &str, said: &mut Said) -> Option<(&'d Members, String)> {
    let at = format!("{at}/{EXTENSION}");
    match value {
        Value::Object(members) => return Some((members, at)),
        Value::Array(_) => {
            let what = "several contracts share this operation";
            let remedy = "take each from where it is served: /hermes/handshake?agent=ID";
            said.fault("shared-route", at, what, remedy);
        }
        _ => said.fault("field-type", at, "must be an object", "write an object"),
    }
    None
}

fn twice(operations: &[Operation<'_>], said: &mut Said) {
    let mut seen = std::collections::HashSet::new();
    for operation in operations {
        if let Some((Value::String(id), at)) = operation.extension("id")
            && !seen.insert(id)
        {
            let what = format!("two operations are the contract \"{}\"", shorten(id));
            let remedy = "give each operation an id of its own";
            said.fault("id-twice", at, &what, remedy);
        }
    }
}
