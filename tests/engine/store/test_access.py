"""Roles, owners, and the order of runs from several owners, on both databases."""

from collections.abc import Callable

import pytest

from engine.jobs import hosts
from engine.settings import Settings
from engine.specs import ProfileSpec, Refused
from engine.store import QueueFull, Role, Store, User, attempts, queue
from engine.store.access import user_of

ANN, BOB, EVE = User("ann@x.org", Role.RUNNER), User("bob@x.org", Role.RUNNER), User("eve@x.org", Role.VIEWER)
ADMIN = User("root@x.org", Role.ADMIN)
SPEC = ProfileSpec(models=("a",), device="cpu")


@pytest.fixture
def settings(settings: Settings, database_url: str) -> Settings:
    """Return settings with at most 3 queued runs per user. Each test of this file runs on both databases."""
    return settings.model_copy(update={"database_url": database_url, "user_queue_limit": 3})


@pytest.mark.parametrize(
    ("email", "verified", "role"),
    [
        ("Ann@Example.org", True, Role.ADMIN),
        ("carl@example.org", "true", Role.RUNNER),
        ("dan@partner.example", True, Role.VIEWER),
        ("ann@example.org", False, Role.NONE),
        ("ann@example.org", None, Role.NONE),
        ("carl@evil-example.org", True, Role.NONE),
        ("carl@sub.example.org", True, Role.NONE),
        ("carl@example.org.evil.com", True, Role.NONE),
        ("carl@evil.com@example.org", True, Role.NONE),
        ("ann@example.org,carl@evil.com", True, Role.NONE),
        ("@example.org", True, Role.NONE),
        ("", True, Role.NONE),
        (None, True, Role.NONE),
        ("\N{KELVIN SIGN}ate@example.org", True, Role.NONE),
        ("carl@example.org ", True, Role.NONE),
        ("carl@example.org\n", True, Role.NONE),
    ],
)
def test_role_needs_a_listed_and_verified_address(email: object, verified: object, role: Role) -> None:
    settings = Settings(admins="ANN@example.org", runners="@example.org, k@b.org", viewers="dan@partner.example,")
    assert user_of({"email": email, "email_verified": verified}, settings).role is role


@pytest.mark.parametrize("names", ["example.org", "*@example.org", "a@b@c", "ann@example.org bob@x.org", "@"])
def test_setting_that_is_no_address_or_domain_is_refused(names: str) -> None:
    with pytest.raises(Refused, match=r"VITALS_RUNNERS: .* neither an e-mail"):
        Settings(runners=names)


ACTIONS: dict[str, Callable[[Store, int], object]] = {
    "cancel": Store.request_cancel,
    "delete": Store.delete,
    "retry": Store.retry,
    "tag": lambda store, run: store.change_tags([run], add=["mine"]),
    "tag several": lambda store, run: store.change_tags(iter([run]), add=["mine"]),
    "annotate": lambda store, run: store.set_notes(run, "mine"),
}


@pytest.mark.parametrize("user", [BOB, EVE, User("", Role.RUNNER), User("ann@x.org", Role.NONE)])
def test_only_owner_and_admins_change_a_run(store: Store, user: User) -> None:
    run_id = store.acting_as(ANN).enqueue(SPEC)
    before = store.run(run_id)
    assert before.owner == "ann@x.org"
    for action in ACTIONS.values():
        with pytest.raises(Refused, match=r"run 1 belongs to ann@x\.org: only its owner and admins"):
            action(store.acting_as(user), run_id)
    assert store.run(run_id) == before
    for allowed in (ANN, ADMIN):
        store.acting_as(allowed).set_notes(run_id, allowed.email)
    store.acting_as(ANN).request_cancel(run_id)
    store.acting_as(ANN).retry(run_id)
    store.acting_as(ADMIN).request_cancel(run_id)
    store.acting_as(ANN).delete(run_id)


def test_only_admins_change_runs_without_owner_and_viewers_start_none(store: Store) -> None:
    run_id = store.enqueue(SPEC)
    for user in (ANN, User("", Role.RUNNER)):
        with pytest.raises(Refused, match="belongs to no user"):
            store.acting_as(user).request_cancel(run_id)
    store.acting_as(ADMIN).request_cancel(run_id)
    with pytest.raises(Refused, match="your role is viewer, and this needs the role runner"):
        store.acting_as(EVE).enqueue(SPEC)


def test_users_declare_only_hosts_with_their_own_runs_gone(settings: Settings, store: Store) -> None:
    for user in (ANN, BOB):
        store.acting_as(user).enqueue(SPEC)
        assert queue.claim(store.database, "lost" if user is ANN else "lost too")
    quick = settings.model_copy(update={"lease_s": 1e-9})
    with pytest.raises(Refused, match="run 1 belongs to ann"):
        hosts.declare_gone(store.acting_as(BOB), quick, "lost")
    assert len(attempts.open_attempts(store.database)) == 2
    assert hosts.declare_gone(store.acting_as(ANN), quick, "lost").run_ids == (1,)


def test_owners_take_turns_and_runs_of_an_owner_keep_their_order(store: Store) -> None:
    for user in (ANN, ANN, ANN, BOB, BOB):
        store.acting_as(user).enqueue(SPEC)
    store.enqueue(SPEC)  # a run without owner
    expected = [1, 4, 6, 2, 5, 3]
    assert store.queue_order() == expected
    assert [store.position(run_id) for run_id in expected] == [1, 2, 3, 4, 5, 6]
    started = []
    while attempt := queue.claim(store.database, f"host {len(started)}"):
        started.append(attempt.run_id)
    assert started == expected
    for user in (ANN, BOB):  # both had turns, and Ann had the last one
        store.acting_as(user).enqueue(SPEC)
    assert store.queue_order() == [8, 7]


def test_limit_of_queued_runs_applies_per_user(store: Store) -> None:
    as_ann = store.acting_as(ANN)
    ids = [as_ann.enqueue(SPEC) for _ in range(3)]
    with pytest.raises(QueueFull, match=r"3 runs of ann@x\.org in the queue, at most 3 may wait: cancel some"):
        as_ann.enqueue(SPEC)
    store.acting_as(BOB).enqueue(SPEC)
    for _ in range(4):
        store.enqueue(SPEC)
    as_ann.request_cancel(ids[0])
    as_ann.enqueue(SPEC)
    with pytest.raises(QueueFull, match="3 runs of ann"):
        as_ann.retry(ids[0])
