"""Plans by pages: the PyTorch form against pages counted one by one; attention over them, against single tokens."""

from __future__ import annotations

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpolicy.kernels.page_plan import host_plan, most_pages, write_page_plan

Plan = dict[str, torch.Tensor]

CASES = st.tuples(
    st.sampled_from([1, 2, 16, 64]), st.lists(st.integers(0, 200), min_size=0, max_size=9), st.integers(0, 1 << 20)
)


def table(rng: random.Random, requests: int, tokens: int, page: int) -> torch.Tensor:
    """Rows of slots, every request in pages of its own, in any order."""
    count = -(-tokens // page)
    pages = list(range(1, requests * count + 1))
    rng.shuffle(pages)
    rows = torch.tensor(pages, dtype=torch.int32).view(requests, count)
    return (rows[:, :, None] * page + torch.arange(page, dtype=torch.int32)).flatten(1)


def written(req_to_token: torch.Tensor, rows: torch.Tensor, lens: torch.Tensor, page: int) -> Plan:
    """What is written; what is not is -1."""
    entries = most_pages(int(lens.sum()), lens.numel(), page)
    plan = {
        "indptr": torch.full((lens.numel() + 3,), -1, dtype=torch.int32),
        "indices": torch.full((entries,), -1, dtype=torch.int32),
        "last_page_tokens": torch.full((lens.numel() + 2,), -1, dtype=torch.int32),
    }
    write_page_plan(req_to_token, rows, lens, page, **plan)
    return plan


@settings(max_examples=300, deadline=None)
@given(case=CASES)
def test_pages_one_by_one(case: tuple[int, list[int], int]) -> None:
    page, lengths, seed = case
    rng = random.Random(seed)
    req_to_token = table(rng, len(lengths) + 2, 200, page)
    rows, lens = torch.tensor(rng.sample(range(len(lengths) + 2), len(lengths))).long(), torch.tensor(lengths).long()
    plan = written(req_to_token, rows, lens, page)
    pages = [
        [int(req_to_token[row, position]) // page for position in range(0, length, page)]
        for row, length in zip(rows.tolist(), lengths, strict=True)
    ]
    counts = [len(found) for found in pages]
    assert plan["indptr"].tolist() == [sum(counts[:i]) for i in range(len(counts) + 1)] + [-1, -1]
    every = [page for found in pages for page in found]
    assert plan["indices"][: len(every)].tolist() == every
    assert plan["indices"][len(every) :].eq(-1).all()
    last = [length - (count - 1) * page if length else 1 for length, count in zip(lengths, counts, strict=True)]
    assert plan["last_page_tokens"].tolist() == [*last, -1, -1]
    indptr, on_host = host_plan(lens, page)
    assert (indptr.tolist(), on_host.tolist()) == (plan["indptr"][: len(counts) + 1].tolist(), last)


def test_integers_may_be_narrow() -> None:
    """SGLang keeps rows and lengths as int64 or int32, depending on the path."""
    req_to_token = table(random.Random(1), 5, 100, 16)
    rows, lens = torch.tensor([3, 0, 4]), torch.tensor([33, 16, 1])
    wide, narrow = written(req_to_token, rows, lens, 16), written(req_to_token, rows.int(), lens.int(), 16)
    assert all(torch.equal(wide[name], narrow[name]) for name in wide)


def test_the_pages_hold_the_tokens() -> None:
    """Read as a kernel reads them, they give each request's tokens, in order."""
    for page in (1, 16, 64):
        req_to_token = table(random.Random(page), 4, 300, page)
        slots = int(req_to_token.max()) + 1
        pool = torch.arange(-(-slots // page) * page).view(-1, page)  # each slot holds its own number
        rows, lens = torch.tensor([2, 0, 3]), torch.tensor([299, 64, 17])
        plan = written(req_to_token, rows, lens, page)
        for at, (row, length) in enumerate(zip(rows, lens, strict=True)):
            begin, end = plan["indptr"][at : at + 2].tolist()
            held = pool[plan["indices"][begin:end].long()].flatten()
            held = held[: (end - begin - 1) * page + int(plan["last_page_tokens"][at])]
            assert held.tolist() == req_to_token[row, :length].tolist()
