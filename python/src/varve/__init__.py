"""Reads traces of Varve, records programs, names phases, and judges the memory of tests.

>>> import varve
>>> with varve.record(["./solver", "input"]) as run:
...     run.wait()
>>> t = run.trace
>>> t.footprint["touched_pages"]
>>> t.objects.filter("kind = 'heap'").order("bytes DESC").limit(10).df()
>>> t.heatmap()

Figures are those of ``varve report --json``, which the binary makes; tables are the trace's own, read with DuckDB.
The binary is ``$VARVE``, or ``varve`` of the path.
"""

from varve._binary import VarveError
from varve._marks import event, phase
from varve._record import Recording, record
from varve._trace import TABLES, Heatmap, Trace, open

__all__ = ["TABLES", "Heatmap", "Recording", "Trace", "VarveError", "event", "open", "phase", "record"]
