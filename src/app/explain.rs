//! The admin listener's questions of choices, put to the listener that makes them.

use crate::admin::{Explain, Question, Refusal, Seen};
use crate::proxy::outbound::{self, Outbound};
use crate::socket::Live;
use std::sync::Arc;

/// Hands questions to `outbound`.
pub fn explain(outbound: Arc<Live<Outbound>>) -> Explain {
    Box::new(move |question| {
        let outbound = outbound.now();
        Box::pin(async move {
            let explained = outbound.explain(put(question)).await;
            let explanation = explained.map_err(|unexplained| Refusal {
                status: unexplained.problem.status(),
                kind: unexplained.problem.as_str(),
                detail: unexplained.detail,
            })?;
            // Texts and numbers alone: writing them cannot fail.
            Ok(serde_json::to_value(explanation).unwrap_or_default())
        })
    })
}

/// Tells what `outbound` knows of instances from its calls.
pub fn seen(outbound: Arc<Live<Outbound>>) -> Seen {
    Box::new(move |agent| {
        let seen = outbound.now().seen(agent).into_iter();
        // Texts and numbers alone: writing them cannot fail.
        let shown = seen.map(|seen| {
            let shown = serde_json::to_value(&seen).unwrap_or_default();
            (seen.instance, shown)
        });
        shown.collect()
    })
}

fn put(question: Question) -> outbound::Question {
    outbound::Question {
        agent: question.agent,
        task_id: question.task_id,
        required_tags: question.tags,
        region: question.region,
        utc_offset: question.utc_offset,
        deadline_ms: question.deadline_ms,
    }
}
