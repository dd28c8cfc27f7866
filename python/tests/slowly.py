"""What tables of a trace say, counted the slow way."""

import pyarrow.parquet as pq

PAGE = 4096
#: A store knows when something was in sixteenths of a recording.
SLICES = 16


def _rows(folder, table):
    return pq.read_table(folder / f"{table}.parquet").to_pylist()


def _own_touches(folder):
    return [row for row in _rows(folder, "touches") if row["source"] != "possibly_others"]


def _pages(row):
    return range(row["page"], row["page"] + row["pages"])


def pages_by_interval(folder):
    """Count the pages that each interval touched, in rising order of the counts."""
    touched = {}
    for row in _own_touches(folder):
        pages = touched.setdefault(row["interval"], set())
        pages.update((row["pid"], page) for page in _pages(row))
    return sorted(len(touched.get(row["interval"], ())) for row in _rows(folder, "intervals"))


class Slices:
    """Touches of a trace by slices of the recording."""

    def __init__(self, folder):
        """Read them."""
        intervals = _rows(folder, "intervals")
        self._start = min(row["start_ns"] for row in intervals)
        self._end = max(row["end_ns"] for row in intervals)
        slices = {row["interval"]: (self._of(row["start_ns"]), self._of(row["end_ns"])) for row in intervals}
        self._touches = [(row["pid"], *slices[row["interval"]], _pages(row)) for row in _own_touches(folder)]
        self.objects = _rows(folder, "objects")

    def _of(self, time):
        return min(max((time - self._start) * SLICES // (self._end - self._start), 0), SLICES - 1)

    def _life(self, row):
        died = self._end if row["died_ns"] is None else row["died_ns"]
        return self._of(row["born_ns"]), self._of(died)

    def _whole_pages(self, row):
        return set(range(-(-row["address"] // PAGE), (row["address"] + row["bytes"]) // PAGE))

    def touched(self, row):
        """Count the pages that lie wholly in an object and were touched in a slice in which it lived."""
        pages = self._whole_pages(row)
        born, died = self._life(row)
        if row["layer"] == 2:
            for inner in self.objects:
                begins, ends = self._life(inner)
                if inner["pid"] == row["pid"] and inner["layer"] > 2 and begins <= died and born <= ends:
                    pages -= self._whole_pages(inner)
        touched = set()
        for pid, first, last, run in self._touches:
            if pid == row["pid"] and first <= died and born <= last:
                touched.update(pages.intersection(run))
        return len(touched)
