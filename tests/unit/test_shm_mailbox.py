"""Messages through shared memory: longer than a channel, more than it has entries, in any order; and wake-ups."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import on_shm_threads
from paceline.comm import CommError, shm_mailbox, shm_sync
from paceline.train.context import Context

PIECE = 1024  # as the fixture small_channels has it


def message(seed: int, length: int) -> Tensor:
    return torch.randint(256, (length,), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def talk_at_random(context: Context, seed: int, count: int) -> int:
    """Every worker sends `count` messages to each other, of random lengths and tags, and receives them in any order."""
    comm, ws = context.comm, context.world_size
    rng = random.Random(1000 * seed + comm.rank)
    lengths = [0, 1, 63, 64, 65, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 4 * PIECE, 9 * PIECE + 5]
    plan = {}  # what a worker sends is known to all
    for source in range(ws):
        for target in range(ws):
            choice = random.Random(10_000 * seed + 100 * source + target)
            plan[source, target] = [(choice.choice(lengths), choice.randrange(3)) for _ in range(count)]
    others = [peer for peer in range(ws) if peer != comm.rank]
    sends, receives = [], []
    todo = [("send", peer) for peer in others] * count + [("receive", peer) for peer in others] * count
    rng.shuffle(todo)
    sent: dict[int, int] = dict.fromkeys(others, 0)
    waiting = {peer: list(enumerate(plan[peer, comm.rank])) for peer in others}
    for what, peer in todo:
        if rng.random() < 0.05:
            time.sleep(rng.random() * 1e-3)
        if what == "send":
            index = sent[peer]
            sent[peer] += 1
            length, tag = plan[comm.rank, peer][index]
            sends.append(comm.isend(message(hash((comm.rank, peer, index)), length), peer, tag))
        else:
            # The tags in any order; of one tag, messages come as they were sent.
            tag = rng.choice([tag for _, (_, tag) in waiting[peer]])
            place = next(i for i, (_, (_, t)) in enumerate(waiting[peer]) if t == tag)
            index, (length, _) = waiting[peer].pop(place)
            tensor = torch.zeros(length, dtype=torch.uint8)
            receives.append((comm.irecv(tensor, peer, tag), tensor, message(hash((peer, comm.rank, index)), length)))
    rng.shuffle(receives)
    for work, tensor, expected in receives:
        work.wait()
        assert torch.equal(tensor, expected)
    for send in sends:
        send.wait()
    inboxes = comm._mailbox._in.values()
    assert not any(inbox.posted or inbox.unexpected for inbox in inboxes), "nothing is kept of tags that are done with"
    return len(receives)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("world_size", [2, 3, 5])
@pytest.mark.usefixtures("small_channels")
def test_any_messages_in_any_order(world_size: int, seed: int) -> None:
    count = 40
    assert on_shm_threads(world_size, talk_at_random, seed=seed, count=count) == [count * (world_size - 1)] * world_size


def send_what_fits(context: Context, lengths: list[int]) -> list[bool]:
    """Sends are complete without the receiver, as long as they fit; afterwards it finds them all."""
    comm = context.comm
    if comm.rank == 1:
        comm.barrier()
        for index, length in enumerate(lengths):
            tensor = torch.zeros(length, dtype=torch.uint8)
            comm.recv(tensor, 0)
            assert torch.equal(tensor, message(index, length))
        return []
    sends: list[Any] = [comm.isend(message(index, length), 1) for index, length in enumerate(lengths)]
    done = [send.is_done for send in sends]
    comm.barrier()
    for send in sends:
        send.wait()
    return done


@pytest.mark.parametrize(
    ("lengths", "num_done"),
    [
        ([PIECE] * 6, 4),  # by room
        ([1] * 12, 8),  # by entries
        ([0] * 9, 8),
        ([10 * PIECE], 0),
        ([3 * PIECE, 2 * PIECE], 1),
        ([], 0),
    ],
)
@pytest.mark.usefixtures("small_channels")
def test_what_fits_is_on_its_way_at_once(lengths: list[int], num_done: int) -> None:
    done = on_shm_threads(2, send_what_fits, lengths=lengths)[0]
    assert done == [index < num_done for index in range(len(lengths))]


def big_both_ways(context: Context) -> bool:
    comm = context.comm
    peer = 1 - comm.rank
    sending = comm.isend(message(comm.rank, 50 * PIECE + 3), peer)
    received = torch.zeros(50 * PIECE + 3, dtype=torch.uint8)
    comm.recv(received, peer)
    sending.wait()
    return torch.equal(received, message(peer, 50 * PIECE + 3))


@pytest.mark.usefixtures("small_channels")
def test_long_messages_both_ways_at_once() -> None:
    assert on_shm_threads(2, big_both_ways) == [True, True]


def take_turns(context: Context, count: int) -> Any:
    """Worker 0 serves everybody, while a long message of its own is on its way."""
    comm, ws = context.comm, context.world_size
    long = message(5, 20 * PIECE)
    if comm.rank:
        for index in range(count):
            comm.send(torch.tensor([comm.rank, index]), 0, 3)
        comm.barrier()
        if comm.rank == 1:
            received = torch.zeros_like(long)
            comm.recv(received, 0, 4)
            return torch.equal(received, long)
        return None
    comm.barrier()  # so that everybody's messages lie there
    sending = comm.isend(long, 1, 4)
    turns = []
    tensor = torch.zeros(2, dtype=torch.int64)
    for _ in range(count * (ws - 1)):
        peer = comm.recv_any(tensor, 3)
        assert int(tensor[0]) == peer
        turns.append((peer, int(tensor[1])))
    sending.wait()
    return turns


@pytest.mark.usefixtures("small_channels")
def test_receiving_from_any_is_fair() -> None:
    results = on_shm_threads(4, take_turns, count=5)
    assert results[0] == [(peer, index) for index in range(5) for peer in (1, 2, 3)]
    assert results[1] is True


def wrong_length(context: Context, posted_first: bool, length: int) -> str:
    comm = context.comm
    if comm.rank == 1:
        if posted_first:
            comm.barrier()
        comm.isend(torch.zeros(6), 0, 7)
        if not posted_first:
            comm.barrier()
        return ""
    receiving = comm.irecv(torch.zeros(length), 1, 7) if posted_first else None
    comm.barrier()
    try:
        (receiving or comm.irecv(torch.zeros(length), 1, 7)).wait()
    except ValueError as error:
        return str(error)
    return "nothing was wrong"


@pytest.mark.parametrize("posted_first", [True, False])
@pytest.mark.parametrize("length", [5, 7, 0])
def test_a_message_of_another_length_is_an_error_that_says_so(length: int, posted_first: bool) -> None:
    results = on_shm_threads(2, wrong_length, length=length, posted_first=posted_first, meet_at_end=False)
    assert results[0] == f"worker 1 sent a message of 24 bytes, but the receive expects {4 * length} bytes"


def silence(context: Context, what: str) -> str:
    comm = context.comm
    if comm.rank:
        while what == "noise" and not getattr(silence, "is_over", False):  # worker 1 rings all the time
            comm._waiter.wake(0)
            time.sleep(0.001)
        return ""
    receive = comm.recv_any if what == "any" else lambda tensor: comm.recv(tensor, 1)
    with pytest.raises(CommError, match="received nothing") as caught:
        receive(torch.zeros(1))
    silence.is_over = True  # type: ignore[attr-defined]
    return str(caught.value)


@pytest.mark.parametrize("what", ["silence", "any", "noise"])
def test_silence_becomes_an_error_that_names_the_peer(what: str) -> None:
    silence.is_over = False  # type: ignore[attr-defined]
    results = on_shm_threads(2, silence, what=what, timeout_s=0.3, meet_at_end=False)
    assert results[0] == "worker 0 received nothing from worker 1 in 0.3 s (the time limit)"


# Wake-ups.


def ping_pong(context: Context, rounds: int) -> int:
    """Each waits for the other's word, asleep, so that every round needs a wake-up in each direction."""
    comm: Any = context.comm
    waiter, words = comm._waiter, comm._counters._words
    assert not waiter.can_spin
    mine, theirs = 8 * comm.rank + 3, 8 * (1 - comm.rank) + 3  # words of the counters' lines that nothing else uses
    waiter.num_expired = 0
    for number in range(1, rounds + 1):
        if comm.rank == 0:
            words[mine] = number
            waiter.wake(1)
        waiter.wait(lambda number=number: 1 - comm.rank if words[theirs] < number else -1)
        if comm.rank == 1:
            words[mine] = number
            waiter.wake(0)
    return waiter.num_expired


def never_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_sync, "YIELDS", 0)
    init = shm_sync.ShmWaiter.__init__

    def without(self: shm_sync.ShmWaiter, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        self.can_spin = False

    monkeypatch.setattr(shm_sync.ShmWaiter, "__init__", without)


def test_no_wake_up_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    never_spin(monkeypatch)
    sleep, slept = shm_sync._wait_semaphore, []

    def count(*arguments: Any) -> bool:
        slept.append(1)
        return sleep(*arguments)

    monkeypatch.setattr(shm_sync, "_wait_semaphore", count)
    rounds = 20_000
    expired = on_shm_threads(2, ping_pong, rounds=rounds, timeout_s=120)
    assert len(slept) > rounds // 2  # whoever is woken may run at once, and find the next word said
    # A slice may pass because the machine is busy elsewhere; one that was lost would be one per round.
    assert sum(expired) < rounds // 200


def test_without_wake_ups_every_round_takes_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    never_spin(monkeypatch)
    monkeypatch.setattr(shm_sync.ShmWaiter, "wake", lambda self, peer: None)  # noqa: ARG005
    assert sum(on_shm_threads(2, ping_pong, rounds=5)) >= 5


def test_channels_are_never_shorter_than_a_piece() -> None:
    for world_size in range(1, 65):
        room = shm_mailbox.channel_bytes(world_size) - (2 + shm_mailbox.ENTRIES) * 64
        assert room >= 4 * shm_mailbox.PIECE_BYTES
        assert room % 64 == 0
