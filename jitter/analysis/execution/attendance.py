"""Which collectives each rank of a run attends, and with whom: as process groups say, or inferred from times."""

from collections.abc import Iterator
from dataclasses import replace

from jitter.analysis.collectives.group_inference import TeamEnds, find_unnamed_peers, infer_attended
from jitter.analysis.collectives.matching import (
    Attended,
    CollectiveMatching,
    Group,
    complete_attended,
    join_attended,
    match,
    take_stated,
)
from jitter.analysis.collectives.rings import tell_rings, tell_unstated_rings
from jitter.analysis.execution.run_programs import RunPrograms, groups_of_ranks
from jitter.analysis.execution.step_times import of_team
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import spread_positions
from jitter.core.parallel.prefetch import map_ahead


def match_collectives(run: RunPrograms) -> CollectiveMatching:
    """Return the members of each collective of a run."""
    attended = list_attended(run)
    if find_unnamed_peers(run.programs, run.team_of, attended):
        attended = tell_rings(run.programs, run.team_of, attended, _compared_steps(run))
    if all(
        group is not None for attendances in attended.values() for _, group in attendances
    ) and not find_unnamed_peers(run.programs, run.team_of, attended):
        return match(run.programs, run.team_of, attended)
    inferred, alone = infer_attended(run.programs, run.team_of, attended, _compared_steps(run))
    inferred = tell_unstated_rings(run.programs, attended, inferred, run.team_of, _compared_steps(run))
    matched = match(run.programs, run.team_of, inferred, alone)
    return replace(matched, inferred=inferred != attended)


def list_attended(run: RunPrograms) -> Attended:
    """Return each rank's collectives, (place, group), in the order of its program.

    All collectives of the rank's first whole step count. Others, such as those of an evaluation step, count if all
    members of their group have the same number of them: else their order does not tell which of them meet. A rank
    without a whole step is taken to attend those of its team; of one that states no group, see `take_stated`.
    """
    first: dict[int, dict[int, Group | None]] = {}
    every: dict[int, dict[int, Group | None]] = {}
    in_cut_steps: dict[int, dict[int, Group | None]] = {rank: {} for rank in run.team_of}
    for key in run.keys:
        new = run.survey.new.get(key)
        if new is None:
            if all(member.cut or member.rank in every for member in run.reader.members(key)):
                continue
            group_of = groups_of_ranks(run.reader, key)
            new = [(member, group_of[member.rank].signature) for member in run.reader.members(key)]
            for group in group_of.values():
                run.survey.note_collectives(group)
        groups = None
        for member, signature in new:
            seen = in_cut_steps if member.cut else every
            seen_places = seen.get(member.rank)
            program = run.programs[run.team_of[member.rank]]
            if signature not in program.places:
                program.fit(signature, run.reader.example(key, member.rank))
            operations, rows = run.survey.collective_rows[signature]
            places = program.places[signature][operations].tolist()
            if seen_places is not None and seen_places.keys() >= {place for place in places if place >= 0}:
                continue
            groups = run.reader.groups(key) if groups is None else groups
            of_rank = groups[member.rank]
            attended = {at: of_rank.get(row) for at, row in zip(places, rows.tolist(), strict=True) if at >= 0}
            seen[member.rank] = attended | (seen_places or {})
            if not member.cut:
                first.setdefault(member.rank, attended)
    for rank in run.team_of.keys() - first.keys():
        peer = min((candidate for candidate in first if run.team_of[candidate] == run.team_of[rank]), default=None)
        of_peer = {} if peer is None else first[peer]
        first[rank] = every[rank] = complete_attended(rank, in_cut_steps[rank], of_peer)
    return take_stated(join_attended(first, every, run.team_of), run.team_of)


def _compared_steps(run: RunPrograms) -> Iterator[dict[int, TeamEnds]]:
    """Yield each team's part of some evenly spaced steps."""
    keys = list(run.keys)
    compared = [keys[at] for at in spread_positions(len(keys), THRESHOLDS.group_inference.compared_steps)]
    for step in map_ahead(run.step_times, compared, run.ahead):
        parts = ((team, of_team(step, run.rank_numbers, team, size)) for team, size in run.operation_counts.items())
        yield {team: (times.ranks, times.start, times.end) for team, times in parts}
