"""No two tenants or groups, however they are called, find each other's cached prompts."""

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.cache_namespace import framed, namespace_of_group, namespace_of_tenant, num_common_tokens

SECRET = b"secret of the tests"
NAMES = st.text(st.characters(codec="utf-8"), max_size=20)
IDS = st.lists(st.integers(0, 2), max_size=8)


@given(NAMES, NAMES)
def test_two_names_are_two_namespaces(one: str, other: str) -> None:
    for namespace_of in (namespace_of_tenant, namespace_of_group):
        assert (namespace_of(SECRET, one) == namespace_of(SECRET, other)) is (one == other)


@given(NAMES, NAMES)
def test_a_group_is_never_taken_for_a_tenant(tenant: str, group: str) -> None:
    assert namespace_of_tenant(SECRET, tenant) != namespace_of_group(SECRET, group)


@given(st.lists(NAMES, max_size=3), st.lists(NAMES, max_size=3))
@example(["org_1", "2345"], ["org_12345", ""])
def test_where_a_part_begins_and_ends_is_part_of_it(one: list[str], other: list[str]) -> None:
    assert (framed(*one) == framed(*other)) is (one == other)


def test_without_the_servers_secret_no_namespace_can_be_computed() -> None:
    assert namespace_of_tenant(SECRET, "acme") != namespace_of_tenant(b"another", "acme")
    assert len(namespace_of_tenant(SECRET, "acme")) == 32


@given(IDS, IDS)
def test_common_tokens_are_the_longest_common_beginning(one: list[int], other: list[int]) -> None:
    num_common = num_common_tokens(one, other)
    assert one[:num_common] == other[:num_common]
    assert one[num_common : num_common + 1] != other[num_common : num_common + 1] or num_common == min(
        len(one), len(other)
    )
