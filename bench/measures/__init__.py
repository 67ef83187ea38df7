"""All measurements, in the order of the table."""

from bench.measures import cells, load, memory, sizes, starts, turns
from bench.measuring import Measure

MEASURES: dict[str, Measure] = {
    measure.name: measure
    for module in (starts, cells, load, sizes, memory, turns)
    for measure in module.MEASURES
}
