//! The nearest known word for a mistyped one.

/// Finds the word most like `word`, if one is near enough to be what was meant.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).clamp(1, 3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn near_words_are_suggested_and_far_ones_are_not() {
        let known = ["upstream", "health", "health_interval", "tags"];
        for (word, expected) in [
            ("upsteam", Some("upstream")),
            ("helth", Some("health")),
            ("health_intervall", Some("health_interval")),
            ("tag", Some("tags")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), expected, "{word}");
        }
    }
}
