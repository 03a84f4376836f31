//! Values on a metrics page.

use super::client::client;

/// A page of metrics as it was at one moment.
pub struct Metrics(String);

impl Metrics {
    /// Reads the page of the process at `url`.
    pub async fn of(url: &str) -> Self {
        let reply = client().get(format!("{url}/metrics")).send().await.unwrap();
        Self(reply.error_for_status().unwrap().text().await.unwrap())
    }

    /// Adds up the series of `family` that have all these labels; fails where there is none.
    pub fn sum(&self, family: &str, labels: &[(&str, &str)]) -> f64 {
        let series: Vec<f64> = self
            .0
            .lines()
            .filter_map(|line| {
                let (series, value) = line.rsplit_once(' ')?;
                let (name, rest) = series.split_once('{').unwrap_or((series, ""));
                let has = |(name, value): &(&str, &str)| {
                    let label = format!("{name}=\"{value}\"");
                    let starts = rest.match_indices(&label).map(|(at, _)| at);
                    starts
                        .into_iter()
                        .any(|at| at == 0 || rest.as_bytes()[at - 1] == b',')
                };
                let fits = name == family && labels.iter().all(has);
                fits.then(|| value.parse().unwrap())
            })
            .collect();
        assert!(!series.is_empty(), "no series {family}{labels:?}");
        series.iter().sum()
    }
}
