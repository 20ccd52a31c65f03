"""Which behaviour tests run on PostgreSQL in ordinary runs; with --all-modes (`make postgres`, `make stress`) all do.

Of the files below only the tests that are named run there. The others ask no statement of the store, and reach no
branch of it, that another test does not ask or reach there: so it was recorded, with every test's statements and
coverage. A file that is not below runs there as a whole.
"""

from __future__ import annotations

ON_POSTGRES: dict[str, tuple[str, ...]] = {
    "activity_callbacks": (),
    "activity_priority": (),
    "alerts": (),
    "app_context": (),
    "asyncio_in_workflows": (),
    "background": (),
    "bad_input": (
        "test_a_cyclic_value_is_refused",
        "test_a_payload_of_exactly_the_limit_is_accepted",
        "test_a_run_id_inside_the_alphabet_is_accepted",
        "test_a_run_id_outside_the_alphabet_is_refused",
        "test_an_aware_datetime_keeps_its_offset",
        "test_an_input_that_cannot_be_stored_is_refused_and_nothing_is_stored",
        "test_odd_but_sound_values_come_back_equal",
    ),
    "branches": (),
    "cancel": (
        "test_a_cancel_inside_a_durable_loop_ends_it",
        "test_cancelling_twice_is_cancelling_once",
    ),
    "children": (
        "test_a_blocked_child_keeps_its_parent_waiting",
        "test_a_child_may_be_named_by_a_string",
        "test_a_refused_child_is_told_to_a_run_that_begins_to_wait_by_the_same_commit",
        "test_an_awaited_child_gives_its_result_to_its_parent",
    ),
    "compensation": (),
    "conditions": (),
    "events": (
        "test_an_event_given_in_the_moment_a_wait_ends_goes_to_somebody_else",
        "test_an_event_given_to_a_run_that_ends_without_taking_it_goes_to_somebody_else",
        "test_an_event_that_has_expired_is_not_delivered",
    ),
    "graphs": (),
    "handles": (
        "test_only_a_run_that_has_completed_has_a_result",
        "test_the_result_has_the_annotated_type",
    ),
    "health": (),
    "idempotency": (
        "test_a_key_is_freed_by_whatever_ends_its_holder",
        "test_a_key_with_other_arguments_is_refused",
        "test_a_rerun_does_a_keyed_step_again",
        "test_the_retry_of_a_step_that_timed_out_finds_what_the_first_attempt_achieved",
    ),
    "keys_after_undoing": (),
    "libraries": (),
    "limits": (),
    "loops": (),
    "newcomer_mistakes": (),
    "observability": (),
    "payloads": (),
    "progress": (),
    "queues": (
        "test_a_condition_is_asked_where_the_step_would_run",
        "test_a_step_that_is_given_up_before_anybody_took_it_never_runs",
        "test_heartbeats_of_a_body_elsewhere_are_seen_on_the_run",
        "test_two_runs_that_want_the_same_effect_share_one_attempt",
    ),
    "requests_and_queries": ("test_a_query_reads_the_state_of_the_code_and_records_nothing",),
    "retention": (
        "test_events_nobody_took_go_and_steps_under_way_stay",
        "test_evidence_the_audit_trail_and_dead_letters_outlive_their_run",
        "test_the_id_of_a_purged_run_is_taken_until_its_time_is_over",
    ),
    "retry_after": (),
    "retry_and_rerun": (
        "test_a_run_that_does_it_again_reads_its_messages_in_the_order_they_came",
        "test_rerun_keeps_the_compensations_of_earlier_lives",
        "test_two_people_who_retry_at_once_retry_once",
    ),
    "retry_families": (
        "test_a_child_that_is_under_way_again_is_waited_for",
        "test_a_run_that_names_the_failures_it_collected_is_retried_with_those_children_alone",
        "test_one_step_of_a_fan_out_is_done_again_and_the_others_keep_their_results",
    ),
    "schedules": (
        "test_a_run_may_be_triggered_outside_the_timetable",
        "test_a_tick_that_meets_the_run_of_the_last_one_does_as_it_was_told",
    ),
    "sequences": (),
    "skipping": (),
    "sleeps": (),
    "start_options": (
        "test_a_parameter_named_like_an_option_goes_by_position",
        "test_a_parameter_named_like_an_option_is_never_swallowed",
        "test_a_parameter_of_a_child_named_like_an_option_is_never_swallowed_either",
        "test_runs_are_found_by_attributes_actor_and_tenant",
        "test_what_a_run_and_people_say_of_it_later_is_found_too",
        "test_what_would_end_beyond_the_calendar_is_refused",
    ),
    "starting": ("test_runs_are_listed_newest_first_and_by_filter",),
    "step_failures": (),
    "step_timeouts": (),
    "step_trail": (
        "test_failures_and_compensations_are_on_the_trail_and_reopening_adds_to_it",
        "test_only_a_person_purges_the_trail_and_that_is_on_record",
        "test_the_trail_has_every_step_though_the_history_was_trimmed_and_renewed",
        "test_without_being_asked_for_there_is_no_trail",
    ),
    "steps": (),
    "sync_code": (),
    "watching": (),
}
