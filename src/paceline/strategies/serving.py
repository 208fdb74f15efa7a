"""The server's side of strategy `parameter-server`, and the messages between workers and servers.

A server holds some tensors of the model with their optimiser state. In each step a worker sends it a note (numbers
such as the learning rates) and a vector (its gradients or weights). The server returns the updated tensors as one
vector, and an answer (numbers such as the gradient's staleness). Notes are float64 tensors on the CPU, so that
`recv_any` works on every comm.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import torch
from torch import Tensor

from paceline.checkpoint import CheckpointRequest, CheckpointWriter, load_optimizer_state, optimizer_state
from paceline.checkpoint.state_tree import restore_
from paceline.codecs import TensorSpec
from paceline.comm import Comm
from paceline.strategies.base import Worker
from paceline.strategies.weights import unpack, views_in

NOTE, VECTOR, TENSORS, ANSWER, START, REQUEST = 0x51, 0x52, 0x53, 0x54, 0x55, 0x56  # tags of messages
# Kinds of notes. STEP: a vector follows; ALIVE: the worker is evaluating; DONE: it has taken its last step and waits
# for the others; FINISH: it ends; STOP_REQUEST: the next step of every worker shall be its last; WITHHELD: as STEP, but
# the vector is not finite and must not be used; SAVE and RESTORE: a request to write or restore a checkpoint follows,
# and the note's weight is the size of the request in bytes.
STEP, ALIVE, DONE, FINISH, STOP_REQUEST, WITHHELD, SAVE, RESTORE = range(8)
NOTE_FIELDS = 3  # kind, weight, version; then the learning rate of every tensor
# Version, staleness, whether to stop, lead in steps (in answers to DONE: the number of workers still running).
ANSWER_FIELDS = 4
NOT_COUNTED = -1  # in place of the staleness, if the answer is not to a step that made an update


def split_tensors(tensors: Sequence[TensorSpec], num_servers: int) -> list[list[int]]:
    """Return the indices of the tensors of each server.

    Tensors are assigned whole, the largest first, each to the server that holds the fewest bytes so far.
    """
    heap = [(0, server) for server in range(num_servers)]
    shares: list[list[int]] = [[] for _ in range(num_servers)]
    for index in sorted(range(len(tensors)), key=lambda i: (-tensors[i].nbytes, i)):
        nbytes, server = heapq.heappop(heap)
        shares[server].append(index)
        heapq.heappush(heap, (nbytes + tensors[index].nbytes, server))
    return [sorted(share) for share in shares]


class Share:
    """The tensors that one server holds, and their learning rates; used by the server and by every worker."""

    def __init__(self, worker: Worker, indices: list[int], wire_dtype: torch.dtype | None) -> None:
        self.parameters = [worker.parameters[index] for index in indices]
        self.dtype = reduce(torch.promote_types, (parameter.dtype for parameter in self.parameters))
        self.wire_dtype = wire_dtype or self.dtype  # of vectors from workers; servers send `dtype`
        self.numel = sum(parameter.numel() for parameter in self.parameters)
        self.device = self.parameters[0].device
        groups = {id(parameter): group for group in worker.optimizer.param_groups for parameter in group["params"]}
        self._groups = [groups[id(parameter)] for parameter in self.parameters]

    @property
    def rates(self) -> list[float]:
        """Return the learning rate of each tensor. Workers send the rates, because servers do not run the schedule."""
        return [float(group["lr"]) for group in self._groups]

    def set_rates(self, rates: list[float], scale: float) -> None:
        for group, rate in zip(self._groups, rates, strict=True):
            group["lr"] = rate * scale

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([tensor.detach().reshape(-1).to(self.dtype) for tensor in tensors])

    def empty_vector(self, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(self.numel, dtype=dtype or self.dtype, device=self.device)

    def empty_note(self) -> Tensor:
        return torch.zeros(NOTE_FIELDS + len(self.parameters), dtype=torch.float64)


@dataclass
class Note:
    """The numbers that a worker sends to a server, either before a vector of gradients or weights, or alone."""

    kind: int  # STEP, ALIVE, DONE, FINISH, STOP_REQUEST or WITHHELD
    weight: float  # the worker's share of the global batch
    version: int  # version of the parameters that the worker has
    rates: list[float]  # learning rate of each tensor

    @staticmethod
    def from_tensor(values: Tensor) -> Note:
        kind, weight, version, *rates = values.tolist()
        return Note(int(kind), weight, int(version), rates)

    def to_tensor(self) -> Tensor:
        return torch.tensor([self.kind, self.weight, self.version, *self.rates], dtype=torch.float64)


def send_request(comm: Comm, peer: int, kind: int, request: CheckpointRequest, share: Share) -> None:
    """Ask a server to write (SAVE) or restore (RESTORE) its part of a checkpoint."""
    data = request.encode()
    comm.send(Note(kind, len(data), 0, share.rates).to_tensor(), peer, NOTE)
    comm.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), peer, REQUEST)


class Server:
    """A parameter server: it updates its tensors with the gradients or weights that workers send, and returns them."""

    def __init__(self, server: Worker, share: Share, num_workers: int, *, receives_gradients: bool) -> None:
        self.comm: Comm = server.comm
        self.share = share
        self.num_workers = num_workers
        self.receives_gradients = receives_gradients  # False: workers send weights, and their mean is the update
        self.version = 0  # updates made so far
        self.is_stop_requested = False  # whether workers are asked to stop
        self._optimizer = server.optimizer
        self._warn = server.warn
        self._writer: CheckpointWriter | None = None
        self._num_requests: dict[int, int] = {}  # workers that have asked for a checkpoint, by its step
        start = share.empty_vector()
        self.comm.recv(start, 0, START)
        unpack(start, share.parameters)

    def serve_synchronously(self) -> None:
        """In each step, add the vectors of all workers in order of rank, and make one update.

        Each vector holds a worker's gradients or its weights, multiplied in both cases by that worker's share of the
        global batch. If a worker has withheld its gradients, there is no update in this step. Returns after the workers
        have sent FINISH.
        """
        share, comm, workers = self.share, self.comm, range(self.num_workers)
        buffers = [share.empty_vector(share.wire_dtype) for _ in workers]
        while True:
            notes = [self._receive_step(worker) for worker in workers]
            if notes[0].kind == FINISH:
                break
            receives = [comm.irecv(buffers[worker], worker, VECTOR) for worker in workers]
            total = torch.zeros(share.numel, dtype=share.dtype, device=share.device)
            for buffer, receive in zip(buffers, receives, strict=True):
                receive.wait()
                comm.add(total, buffer)
            if not any(note.kind == WITHHELD for note in notes):
                self._update(total, notes[0].rates, scale=1.0)
            self._answer(dict.fromkeys(workers, (0, 0)))
        self._finish()

    def serve_on_arrival(self, max_lead: float = math.inf) -> None:
        """Apply each gradient on arrival. Return after all workers have sent FINISH.

        The answer to a worker that is more than `max_lead` steps ahead of the slowest one is delayed, unless a stop was
        requested. A gradient of a step without samples (weight 0) or that its worker has withheld is not applied.
        """
        share, vector = self.share, self.share.empty_vector(self.share.wire_dtype)
        steps_done = dict.fromkeys(range(self.num_workers), 0)  # steps of each worker that has not sent FINISH
        waiting: dict[int, int] = {}  # workers that have no answer yet, and the staleness of their gradients
        done: set[int] = set()
        while steps_done:
            values = share.empty_note()
            worker = self.comm.recv_any(values, NOTE)
            note = Note.from_tensor(values)
            if note.kind == FINISH:
                del steps_done[worker]
            elif note.kind == DONE:
                done.add(worker)
            elif note.kind == STOP_REQUEST:
                self.is_stop_requested = True
            elif note.kind in (SAVE, RESTORE):
                self._take_request(worker, note, num_expected=self.num_workers)
            elif note.kind in (STEP, WITHHELD):
                self.comm.recv(vector, worker, VECTOR)
                is_update = note.kind == STEP and note.weight > 0
                waiting[worker] = self.version - note.version if is_update else NOT_COUNTED
                steps_done[worker] += 1
                if is_update:
                    self._update(vector.to(share.dtype), note.rates, scale=note.weight)
            if done:
                # Answer after every note, so that no worker that is done reaches its time limit.
                num_running = self.num_workers - len(done)
                self._send_answers(dict.fromkeys(done, (NOT_COUNTED, num_running)))
                done = done if num_running else set()
            slowest = min(steps_done.values(), default=0)
            leads = {peer: steps_done[peer] - slowest for peer in waiting}
            # After a stop request no worker waits for slower ones.
            ready = [peer for peer in waiting if leads[peer] <= max_lead or self.is_stop_requested]
            self._answer({peer: (waiting.pop(peer), leads[peer]) for peer in ready})
        self._finish()

    def _receive_step(self, worker: int) -> Note:
        """Receive a worker's next note of kind STEP or FINISH. In between, answer requests for checkpoints.

        Between two steps a synchronous server receives from worker 0 first, so worker 0 alone asks for checkpoints.
        """
        values = self.share.empty_note()
        while True:
            self.comm.recv(values, worker, NOTE)
            note = Note.from_tensor(values)
            if note.kind in (SAVE, RESTORE):
                self._take_request(worker, note, num_expected=1)
            elif note.kind != ALIVE:
                return note

    def _take_request(self, worker: int, note: Note, *, num_expected: int) -> None:
        """Receive a request for a checkpoint. Execute it when as many workers have sent it as expected.

        An asynchronous server waits for all workers, so that it has applied every gradient of the steps before.
        """
        data = torch.empty(int(note.weight), dtype=torch.uint8)
        self.comm.recv(data, worker, REQUEST)
        request = CheckpointRequest.decode(bytes(data.tolist()))
        step = request.header.step
        self._num_requests[step] = self._num_requests.get(step, 0) + 1
        if self._num_requests[step] < num_expected:
            return
        del self._num_requests[step]
        if note.kind == SAVE:
            self._save(request)
        else:
            self._restore(request)

    def _save(self, request: CheckpointRequest) -> None:
        """Start to write the tensors of this server, their optimiser state and their version."""
        if self._writer is None:
            self._writer = CheckpointWriter(Path(request.checkpoints), keep=1, warn=self._warn)
        state = {
            "parameters": [parameter.detach() for parameter in self.share.parameters],
            "optimizer": optimizer_state(self._optimizer),
            "version": self.version,
        }
        self._writer.save(request.header.of_rank(self.comm.rank), state)

    def _restore(self, request: CheckpointRequest) -> None:
        """Restore this server's part of a checkpoint, and send the tensors and their version to all workers."""
        state = request.read(self.comm.rank).state
        for parameter, stored in zip(self.share.parameters, state["parameters"], strict=True):
            restore_(parameter, stored)
        load_optimizer_state(self._optimizer, state["optimizer"])
        self.version = state["version"]
        self._answer(dict.fromkeys(range(self.num_workers), (NOT_COUNTED, 0)))

    def _update(self, vector: Tensor, rates: list[float], *, scale: float) -> None:
        share = self.share
        self.version += 1
        if not self.receives_gradients:
            unpack(vector, share.parameters)
            return
        share.set_rates(rates, scale)
        for parameter, gradient in zip(share.parameters, views_in(vector, share.parameters), strict=True):
            parameter.grad = torch.empty_like(parameter).copy_(gradient)  # with the parameter's memory layout
        # Tensors of other servers have no gradient here, so the optimiser skips them.
        self._optimizer.step()

    def _answer(self, answers: dict[int, tuple[int, int]]) -> None:
        """Send the current tensors to every worker in `answers`, together with its values (staleness, lead)."""
        if answers:
            tensors = self.share.flatten(self.share.parameters)
            sends = [self.comm.isend(tensors, worker, TENSORS) for worker in answers]
            self._send_answers(answers)
            for send in sends:
                send.wait()

    def _send_answers(self, answers: dict[int, tuple[int, int]]) -> None:
        tensors = {
            worker: torch.tensor([self.version, staleness, self.is_stop_requested, lead], dtype=torch.float64)
            for worker, (staleness, lead) in answers.items()
        }
        for send in [self.comm.isend(tensor, worker, ANSWER) for worker, tensor in tensors.items()]:
            send.wait()

    def _finish(self) -> None:
        """Send the final tensors to all workers, and wait until each worker confirms that it has received them."""
        self._answer(dict.fromkeys(range(self.num_workers), (NOT_COUNTED, 0)))
        for worker in range(self.num_workers):
            self.comm.recv(torch.zeros(1), worker, START)
        if self._writer is not None:
            self._writer.wait()
