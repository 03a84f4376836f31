//! What the dashboards ask Prometheus for.

use super::families::{self, Kind};
use crate::support::program::root;
use promql_parser::label::Matchers;
use promql_parser::parser::{self, Expr, LabelModifier};
use promql_parser::util::{ExprVisitor, walk_expr};
use serde_json::Value;

/// Labels that a scraper adds, or that every series of a sidecar has.
const FROM_OUTSIDE: [&str; 4] = ["job", "instance", "application", "le"];

/// A dashboard file.
pub struct Dashboard {
    pub file: String,
    pub body: Value,
}

/// An expression and where it stands.
pub struct Query {
    pub place: String,
    pub expression: String,
}

/// Reads all of `grafana/dashboards`.
pub fn dashboards() -> Vec<Dashboard> {
    let files = std::fs::read_dir(root().join("grafana/dashboards")).unwrap();
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let file = path.file_name().unwrap().to_str().unwrap().to_owned();
        let body = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        Dashboard { file, body }
    };
    files.map(read).collect()
}

impl Dashboard {
    /// Returns its panels that show something (rows are only headings).
    pub fn panels(&self) -> impl Iterator<Item = &Value> {
        self.body["panels"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|panel| panel["type"] != "row")
    }

    /// Returns the queries of its panels.
    pub fn queries(&self) -> Vec<Query> {
        let of = |panel: &Value| {
            let place = format!("{}: {}", self.file, panel["title"].as_str().unwrap());
            let targets = panel["targets"].as_array().unwrap().clone();
            targets.into_iter().map(move |target| Query {
                place: format!("{place} {}", target["refId"].as_str().unwrap()),
                expression: target["expr"].as_str().unwrap().to_owned(),
            })
        };
        self.panels().flat_map(of).collect()
    }

    /// Returns the queries of its annotations.
    pub fn annotations(&self) -> Vec<Query> {
        let list = self.body["annotations"]["list"].as_array().unwrap();
        let of = |annotation: &Value| Query {
            place: format!("{}: annotation {}", self.file, annotation["name"]),
            expression: annotation["expr"].as_str().unwrap().to_owned(),
        };
        list.iter().map(of).collect()
    }

    /// Returns selector and label of each variable that asks Prometheus for values.
    pub fn variables(&self) -> Vec<(Query, String)> {
        let list = self.body["templating"]["list"].as_array().unwrap();
        let of = |variable: &Value| {
            let query = variable["query"]["query"].as_str()?;
            let inner = query.strip_prefix("label_values(")?.strip_suffix(')')?;
            let (selector, label) = inner.rsplit_once(", ")?;
            let place = format!("{}: variable {}", self.file, variable["name"]);
            Some((
                Query {
                    place,
                    expression: selector.to_owned(),
                },
                label.to_owned(),
            ))
        };
        list.iter().filter_map(of).collect()
    }
}

impl Query {
    /// Fills Grafana's variables in as "All" does, with a range that fits a scrape a second.
    pub fn concrete(&self) -> String {
        ["job", "instance", "application", "contract"]
            .iter()
            .fold(self.expression.clone(), |text, name| {
                text.replace(&format!("${name}"), ".+")
            })
            .replace("$__rate_interval", "10s")
            .replace("$__range", "5m")
    }

    /// Returns what is wrong with it as far as that can be seen without a server.
    pub fn faults(&self) -> Vec<String> {
        let mut found = Faults::default();
        match parser::parse(&self.concrete()) {
            Err(error) => found.0.push(error),
            Ok(expression) => {
                let Ok(_) = walk_expr(&mut found, &expression);
            }
        }
        found
            .0
            .into_iter()
            .map(|fault| format!("{}: {fault}", self.place))
            .collect()
    }
}

#[derive(Default)]
struct Faults(Vec<String>);

impl ExprVisitor for Faults {
    type Error = std::convert::Infallible;

    fn pre_visit(&mut self, expression: &Expr) -> Result<bool, Self::Error> {
        match expression {
            Expr::VectorSelector(selector) => {
                self.selector(selector.name.as_deref(), &selector.matchers)
            }
            Expr::MatrixSelector(range) => {
                self.selector(range.vs.name.as_deref(), &range.vs.matchers)
            }
            Expr::Aggregate(aggregate) => self.labels(&aggregate.expr, aggregate.modifier.as_ref()),
            Expr::Call(call) => self.call(call.func.name, &call.args.args),
            _ => {}
        }
        Ok(true)
    }
}

impl Faults {
    fn selector(&mut self, name: Option<&str>, matchers: &Matchers) {
        let Some(name) = name.filter(|name| *name != "up") else {
            return;
        };
        let Some(family) = families::of_series(name) else {
            self.0.push(format!("`{name}` is no metric"));
            return;
        };
        for matcher in &matchers.matchers {
            self.label(&matcher.name, &[family]);
        }
    }

    /// A label one groups by must be one of a family below.
    fn labels(&mut self, below: &Expr, modifier: Option<&LabelModifier>) {
        let names = series(below);
        let families: Vec<_> = names
            .iter()
            .filter_map(|name| families::of_series(name))
            .collect();
        for label in modifier
            .iter()
            .flat_map(|modifier| &modifier.labels().labels)
        {
            self.label(label, &families);
        }
    }

    fn label(&mut self, label: &str, families: &[&families::Family]) {
        let known = families
            .iter()
            .any(|family| family.labels.iter().any(|(name, _)| *name == label));
        if !known && !FROM_OUTSIDE.contains(&label) {
            self.0
                .push(format!("no metric here has the label `{label}`"));
        }
    }

    fn call(&mut self, function: &str, arguments: &[Box<Expr>]) {
        let names: Vec<String> = arguments
            .iter()
            .flat_map(|argument| series(argument))
            .collect();
        for name in names {
            let kind = families::of_series(&name).map(|family| family.kind);
            let fits = match function {
                "rate" | "increase" => kind != Some(Kind::Gauge),
                "histogram_quantile" => name.ends_with("_bucket"),
                _ => true,
            };
            if !fits {
                self.0
                    .push(format!("{function} of `{name}`, which is {kind:?}"));
            }
        }
        let summed_away = |argument: &Expr| {
            let Expr::Aggregate(sum) = argument else {
                return false;
            };
            let kept =
                |kept: &LabelModifier| kept.labels().labels.iter().any(|label| label == "le");
            !sum.modifier.as_ref().is_some_and(kept)
        };
        if function == "histogram_quantile" && arguments.iter().any(|one| summed_away(one)) {
            self.0
                .push("histogram_quantile over a sum without `le`".to_owned());
        }
    }
}

/// Returns the names of all series an expression reads.
fn series(expression: &Expr) -> Vec<String> {
    struct Names(Vec<String>);
    impl ExprVisitor for Names {
        type Error = std::convert::Infallible;

        fn pre_visit(&mut self, expression: &Expr) -> Result<bool, Self::Error> {
            match expression {
                Expr::VectorSelector(selector) => self.0.extend(selector.name.clone()),
                Expr::MatrixSelector(range) => self.0.extend(range.vs.name.clone()),
                _ => {}
            }
            Ok(true)
        }
    }
    let mut names = Names(Vec::new());
    let Ok(_) = walk_expr(&mut names, expression);
    names.0
}
