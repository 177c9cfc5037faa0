"""Where in a recording a finding is to be looked at."""

import jitter
from jitter.analysis.diagnosis.evidence.locations import find_profile_location
from jitter.lake.records import records_by_step
from jitter.simulate import simulate, write
from tests.support.recorded_events import list_events, remove_events
from tests.support.simulated import small


def test_a_rank_that_recorded_the_begin_of_the_worst_step_alone(tmp_path):
    write(simulate(small()), tmp_path / "traces", "nsys")
    (trace,) = (tmp_path / "traces").glob("rank1.*")
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    ends = sorted(event.end_ns for event in list_events([trace]) if event.table == table)
    remove_events([trace], lambda event: event.table == table and event.end_ns > ends[int(0.85 * len(ends))])
    jitter.ingest([tmp_path / "traces"], tmp_path / "lake", executor=jitter.LocalExecutor())
    lake = jitter.open(tmp_path / "lake")
    analysis, records = lake.analyze(), records_by_step(lake.sources)
    found = {
        (rank, number): find_profile_location(analysis, records, rank, {}, [number])
        for rank in (0, 1)
        for number in range(len(analysis.keys))
    }
    held = [number for number, key in enumerate(analysis.keys) if 1 in records[key]]
    cut = [number for number in held if records[analysis.keys[number]][1].step.cut]
    assert cut
    assert all(found[1, number] is None for number in cut)
    assert all(found[1, number] is not None for number in held if number not in cut)
    assert all(found[0, number] is not None for number in range(len(analysis.keys)))
