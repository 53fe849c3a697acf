"""Free lists that are slow and obviously right: what the real ones must do, id for id."""

from __future__ import annotations


class Reference:
    """A sorted or a queued list of ids, by the words of the policy language."""

    def __init__(self, order: str, num_units: int) -> None:
        self.order, self.num_units = order, num_units
        self.clear()

    def clear(self) -> None:
        self.free = list(range(1, self.num_units + 1))

    def resize(self, num_units: int) -> None:
        self.num_units = num_units
        self.clear()

    def sort(self) -> None:
        self.free.sort()

    def give(self, ids: list[int]) -> None:
        self.free = [*ids, *self.free] if self.order == "lifo" else [*self.free, *ids]

    def take(self, count: int) -> list[int]:
        taken: list[int] = []
        while len(taken) < count:
            taken += self._next(count - len(taken))
        return taken

    def take_after(self, last: list[int], counts: list[int]) -> list[int]:
        if self.order != "runs":
            return self.take(sum(counts))
        neighbours = []
        for unit, count in zip(last, counts, strict=True):
            own = []
            while unit >= 1 and len(own) < count and unit + 1 + len(own) in self.free:
                own.append(unit + 1 + len(own))
            # Taken in order of the requests; a run behind a unit in use belongs to the requests that end in that unit.
            for page in own:
                self.free.remove(page)
            neighbours.append(own)
        taken = []
        rest = self.take(sum(counts) - sum(map(len, neighbours)))
        for own, count in zip(neighbours, counts, strict=True):
            missing = count - len(own)
            taken += own + rest[:missing]
            rest = rest[missing:]
        return taken

    def runs(self) -> list[list[int]]:
        """Maximal runs, the longest first, of equal ones the lowest."""
        runs: list[list[int]] = []
        for unit in sorted(self.free):
            if runs and runs[-1][-1] == unit - 1:
                runs[-1].append(unit)
            else:
                runs.append([unit])
        return sorted(runs, key=lambda run: (-len(run), run[0]))

    def _next(self, count: int) -> list[int]:
        if self.order == "address":
            self.free.sort()
        source = self.runs()[0] if self.order == "runs" else self.free
        taken = source[:count]
        self.free = [unit for unit in self.free if unit not in set(taken)]
        return taken
