//! Faults that proxies, validators and clients have shown in the field, each provoked here.
//!
//! A case is one line of the table below and one function, in the file of its group, that
//! provokes the fault with bare sockets and returns in a few words what it has shown. Each run
//! of a case tells one line with its number; `tests/run field-cases` lists them at its end, and a
//! further case is listed once it stands in the table.
//!
//! - `wire` speaks to the sidecar, `peer` is spoken to, both byte by byte
//! - where another test shows a part of a case already, the function's comment says which

mod churn;
mod fields;
mod frames;
mod framing;
mod json;
pub mod leaving;
mod media;
mod message;
mod neighbours;
mod peer;
mod schemas;
mod switching;
mod target;
pub mod waiting;
mod wire;
mod world;

use crate::support::program;
use std::fs::File;
use std::io::Write;

/// Makes a test of each case: its number, what it is about, and the function that provokes it.
macro_rules! cases {
    ($($number:literal $title:literal $group:ident::$test:ident)*) => {
        $(
            #[tokio::test]
            async fn $test() {
                let line = Line::of($number, $title);
                line.shown(&$group::$test().await);
            }
        )*
    };
}

cases! {
    1 "Content-Length with Transfer-Encoding"
        framing::a_length_beside_a_transfer_coding_never_splits_a_request
    2 "repeated or odd Content-Length"
        framing::a_length_said_twice_is_one_length_or_an_error
    3 "our fields named in Connection"
        fields::connection_takes_off_only_what_came_with_it
    4 "a context from outside"
        fields::a_forged_context_is_replaced_or_refused
    5 "protocol switches"
        switching::nothing_is_tunnelled_before_the_switch_is_granted
    6 "Expect: 100-continue"
        waiting::a_sender_that_waits_is_told_at_once
    7 "HEAD, 204 and 304"
        framing::answers_without_content_leave_the_connection_in_step
    8 "empty bodies"
        framing::bodies_that_are_empty_keep_their_framing
    9 "Host, absolute form and CONNECT"
        target::a_request_has_one_authority
    10 "one spelling of a path"
        target::a_path_is_forwarded_as_it_came_or_refused
    11 "number and size of fields"
        fields::heads_that_are_too_large_are_refused_by_name
    12 "slow clients"
        waiting::slow_clients_are_ended_and_hold_up_nobody
    13 "clients that go away"
        leaving::a_client_that_leaves_leaves_nothing_behind
    14 "conveniences of a client library"
        neighbours::nothing_is_done_for_convenience
    15 "streams"
        leaving::streams_pass_at_once_and_end_visibly
    16 "X-Forwarded-* and Forwarded"
        fields::forwarded_fields_end_with_what_was_seen
    17 "HTTP/2 stream churn"
        churn::streams_opened_and_dropped_end_their_connection
    18 "addresses of both families"
        neighbours::a_name_is_tried_at_every_address
    19 "compressed bodies"
        media::a_coded_body_is_refused_and_never_unpacked
    20 "spelling of the media type"
        media::no_spelling_of_the_media_type_passes_unchecked
    21 "bodies on unusual methods, empty JSON"
        media::bodies_go_by_framing_and_not_by_method
    22 "bytes checked and bytes forwarded"
        json::what_was_checked_is_what_goes_on
    23 "not UTF-8, marks, two documents"
        json::what_is_not_one_utf8_document_is_refused_by_its_fault
    24 "names that occur twice"
        json::a_name_that_occurs_twice_is_refused_with_its_place
    25 "numbers beyond the common range"
        json::numbers_are_exact_or_refused
    26 "deep nesting"
        json::deep_nesting_is_refused_wherever_json_is_read
    27 "format"
        schemas::a_format_is_checked_or_named_by_the_linter
    28 "schemas that fetch"
        schemas::no_schema_makes_the_sidecar_fetch
    29 "schemas that cost"
        schemas::no_schema_keeps_the_sidecar_busy
    30 "schemas that say less"
        schemas::a_schema_that_says_less_is_told_of
    31 "data in errors"
        schemas::no_value_leaves_with_an_error
}

/// What a run says of one case: told when it has ended, whichever way.
struct Line {
    number: u32,
    title: &'static str,
    shown: String,
    is_shown: bool,
}

impl Line {
    fn of(number: u32, title: &'static str) -> Self {
        let (shown, is_shown) = ("not shown".to_owned(), false);
        Self {
            number,
            title,
            shown,
            is_shown,
        }
    }

    /// Tells what has been shown.
    fn shown(mut self, what: &str) {
        (self.shown, self.is_shown) = (what.to_owned(), true);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let (number, title, shown) = (self.number, self.title, &self.shown);
        let verdict = if self.is_shown { "ok" } else { "FAILED" };
        let line = format!("FC-{number:02} {title}: {shown} … {verdict}\n");
        // In one write, so that lines of cases that end together stay whole. Without a list to
        // add to it goes past the harness, which keeps what a test prints to itself.
        let told = match program::list_of_cases() {
            Some(list) => {
                let list = File::options().create(true).append(true).open(list);
                list.and_then(|mut list| list.write_all(line.as_bytes()))
            }
            None => std::io::stdout().write_all(line.as_bytes()),
        };
        // A second panic would abort the whole run.
        assert!(told.is_ok() || std::thread::panicking(), "{told:?}");
    }
}
