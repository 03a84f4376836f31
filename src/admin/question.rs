//! The question of `/explain`, read from the target's query.

/// Where would this task's calls go?
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Question {
    /// An id, `id@version`, or a range.
    pub agent: String,
    pub task_id: String,
    pub tags: Vec<String>,
    pub region: Option<String>,
    pub utc_offset: Option<String>,
    pub deadline_ms: Option<u64>,
}

impl Question {
    /// Reads the parameters; each is given once, `tag` as often as wanted.
    pub fn read(pairs: Vec<(String, String)>) -> Result<Self, String> {
        let (mut agent, mut task_id) = (None, None);
        let mut question = Self::default();
        let mut deadline = None;
        for (name, value) in pairs {
            let place = match name.as_str() {
                "agent" => &mut agent,
                "task_id" => &mut task_id,
                "region" => &mut question.region,
                "utc_offset" => &mut question.utc_offset,
                "deadline_ms" => &mut deadline,
                "tag" => {
                    question.tags.push(value);
                    continue;
                }
                _ => {
                    return Err(format!(
                        "{name:?} is no parameter; there are agent, task_id, tag, region, \
                         utc_offset and deadline_ms"
                    ));
                }
            };
            if place.replace(value).is_some() {
                return Err(format!("{name} is given twice"));
            }
        }
        let missing = |name: &str| format!("{name} is missing: ask /explain?agent=ID&task_id=ID");
        question.agent = agent.ok_or_else(|| missing("agent"))?;
        question.task_id = task_id.ok_or_else(|| missing("task_id"))?;
        question.deadline_ms = match deadline {
            None => None,
            Some(text) => match text.parse() {
                Ok(number) => Some(number),
                Err(_no_number) => {
                    return Err("deadline_ms is a whole number of milliseconds".to_owned());
                }
            },
        };
        Ok(question)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &[(&str, &str)]) -> Result<Question, String> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Question::read(query.iter().map(owned).collect())
    }

    #[test]
    fn a_whole_question_is_read() {
        let question = read(&[
            ("agent", "fraud@^1"),
            ("tag", "gpu"),
            ("task_id", "t-1"),
            ("tag", "canary"),
            ("region", "cn-east-1"),
            ("utc_offset", "+08:00"),
            ("deadline_ms", "500"),
        ]);
        let expected = Question {
            agent: "fraud@^1".to_owned(),
            task_id: "t-1".to_owned(),
            tags: vec!["gpu".to_owned(), "canary".to_owned()],
            region: Some("cn-east-1".to_owned()),
            utc_offset: Some("+08:00".to_owned()),
            deadline_ms: Some(500),
        };
        assert_eq!(question, Ok(expected));
    }

    #[test]
    fn a_bad_question_is_told_what_is_wrong() {
        let whole = [("agent", "a-v1.0"), ("task_id", "t")];
        for (more, told) in [
            (("task", "t"), "\"task\" is no parameter"),
            (("agent", "b-v1.0"), "agent is given twice"),
            (("deadline_ms", "1s"), "whole number"),
        ] {
            let error = read(&[whole[0], whole[1], more]).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
        for missing in [0, 1] {
            let error = read(&[whole[1 - missing]]).unwrap_err();
            assert!(error.starts_with(whole[missing].0), "{error}");
        }
    }
}
