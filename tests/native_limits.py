"""Tests that cannot run on native modules (`make test COMPILED=1`), and why."""

EXTENDS = "a class of the test extends one of the router's, which no native class allows"
REPLACES = "it puts a function in the place of one that native code calls directly"
LOOKS_IN = "it looks at how the interpreter keeps attributes"

FILES = {
    "property/test_lane.py": EXTENDS,
    "unit/test_core_engine.py": EXTENDS,
    "unit/test_core_invariants.py": EXTENDS,
    "unit/test_core_rank.py": EXTENDS,
    "unit/test_core_residents.py": EXTENDS,
}
"""Those of whole files, which are not even read: most of their tests would fail."""

TESTS = {
    "test_arming_again_replaces_the_time": EXTENDS,
    "test_disarmed_timer_does_not_ring": EXTENDS,
    "test_instances_share_their_keys": LOOKS_IN,
    "test_many_who_find_nothing_on_a_slow_backend_cost_little": REPLACES,
    "test_one_more_served_is_kept_although_accuracy_falls": REPLACES,
    "test_requests_of_a_query_pass_no_second_door": EXTENDS,
    "test_slots_in_which_nothing_happened_are_remembered_as_empty": REPLACES,
    "test_timers_armed_by_a_firing_ring_too_when_due": EXTENDS,
    "test_timers_of_one_instant_ring_in_the_order_they_were_armed": EXTENDS,
}
