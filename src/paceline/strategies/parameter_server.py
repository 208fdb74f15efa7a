"""Strategy `parameter-server`: its options and the workers' side. The servers' side is in `serving.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from paceline.checkpoint import CheckpointRequest
from paceline.codecs import TensorSpec
from paceline.codecs.cast import Cast
from paceline.comm import Comm, Operation
from paceline.errors import UsageError
from paceline.results.value import Json
from paceline.strategies.base import Guarantee, Strategy, Worker, gradient_of
from paceline.strategies.capabilities import (
    Accumulating,
    Asynchronous,
    BufferEstimate,
    GradientsAtStep,
    Heartbeat,
    KnownGradients,
    ModelCheck,
    ServerCheckpoints,
    Servers,
    Withholding,
    distribution,
)
from paceline.strategies.gradients import refuse_lossy_weights
from paceline.strategies.serving import (
    ALIVE,
    ANSWER,
    ANSWER_FIELDS,
    DONE,
    FINISH,
    NOT_COUNTED,
    NOTE,
    NOTE_FIELDS,
    RESTORE,
    SAVE,
    START,
    STEP,
    STOP_REQUEST,
    TENSORS,
    VECTOR,
    WITHHELD,
    Note,
    Server,
    Share,
    send_request,
    split_tensors,
)
from paceline.strategies.weights import unpack

NUMBER_BYTES = 8  # size of one float64 field of a note
DEFAULT_STALENESS = 2


@dataclass(kw_only=True)
class ParameterServer(
    Accumulating,
    Servers,
    ServerCheckpoints,
    Asynchronous,
    KnownGradients,
    Withholding,
    Heartbeat,
    ModelCheck,
    BufferEstimate,
    Strategy,
):
    """Every worker sends its gradients to servers, which update the parameters and send them back.

    Servers are extra processes without training data. Each server holds some of the model's tensors and their optimiser
    state. No tensor is divided among servers, so any optimiser works. Workers send learning rates with every gradient.

    `mode=sync`: the gradients of all workers, weighted by samples and added in order of rank, make one exact update.
    `mode=async`: each gradient is applied on arrival, with the learning rate times the worker's share of the global
    batch. So the updates of N workers add up to one step of the global batch, for SGD as well as for optimisers that
    normalise gradients, and weight decay is applied once. The staleness of each gradient (the number of updates by
    other workers since its worker received the parameters) is measured.
    `mode=bounded`: as async, but a worker that is more than `max_staleness` steps ahead of the slowest one waits.
    """

    name: ClassVar[str] = "parameter-server"
    paper: ClassVar[str] = "Li et al. 2014, OSDI; bounded: Ho et al. 2013, NeurIPS"

    servers: int = 1
    mode: Literal["sync", "async", "bounded"] = "sync"
    max_staleness: int | None = None  # steps, for mode=bounded only; default 2
    average: Literal["gradients", "weights"] = "gradients"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.servers < 1:
            raise UsageError(f"option servers of strategy {self.name} must be at least 1, not {self.servers}")
        if self.max_staleness is not None and self.max_staleness < 0:
            raise UsageError(
                f"option max_staleness of strategy {self.name} must be at least 0, not {self.max_staleness}"
            )
        if self.max_staleness is not None and self.mode != "bounded":
            raise UsageError(
                f"option max_staleness of strategy {self.name} has no effect with mode={self.mode}; remove "
                "it, or use mode=bounded"
            )
        if self.mode == "bounded" and self.max_staleness is None:
            self.max_staleness = DEFAULT_STALENESS
        if self.average == "weights" and self.mode != "sync":
            raise UsageError(
                f"strategy {self.name} cannot average weights with mode={self.mode}, because one worker's weights "
                "would overwrite the others' updates; use mode=sync, or average=gradients"
            )
        refuse_lossy_weights(self, self.average)
        if self.codec.relative_error and not isinstance(self.codec, Cast):
            raise UsageError(
                f"strategy {self.name} cannot use codec {self.codec.name}, which needs a collective over all workers; "
                "use fp32, fp16 or bf16"
            )

    @property
    def guarantee(self) -> Guarantee:
        if self.mode != "sync":
            return Guarantee.STALE
        if self.average == "weights":
            return Guarantee.PERIODIC
        return Guarantee.of_codec(self.codec)

    @property
    def gradients_at_step(self) -> GradientsAtStep:
        return GradientsAtStep.OWN if self.average == "weights" else GradientsAtStep.SENT

    @property
    def is_asynchronous(self) -> bool:
        return self.mode != "sync"

    def check_model(self, tensors: Sequence[TensorSpec]) -> None:
        if self.servers > len(tensors):
            raise UsageError(
                f"{self.servers} servers cannot share a model of {len(tensors)} trained tensors, because tensors are "
                f"not split; use at most servers={len(tensors)}"
            )

    def num_servers(self, num_workers: int) -> int:  # noqa: ARG002
        return self.servers

    def staleness_bound(self, num_workers: int) -> int | None:
        """Return the largest staleness: (N - 1) (2 s + 1) for N workers and s = `max_staleness`; None if s is None.

        During one step of a worker, each other worker can go from s steps behind it to s + 1 steps ahead.
        """
        return None if self.max_staleness is None else (num_workers - 1) * (2 * self.max_staleness + 1)

    @property
    def staleness_updates(self) -> Sequence[int]:
        return self._staleness

    def serve(self, server: Worker) -> None:
        num_workers = server.comm.world_size - self.servers
        share = self._shares(server)[server.comm.rank - num_workers]
        serving = Server(server, share, num_workers, receives_gradients=self.average == "gradients")
        if self.mode == "sync":
            serving.serve_synchronously()
        else:
            serving.serve_on_arrival(float("inf") if self.max_staleness is None else self.max_staleness)

    def setup(self, worker: Worker) -> None:
        super().setup(worker)
        assert worker.servers is not None, "a parameter server needs a comm that reaches it"
        self._comm: Comm = worker.servers
        self._links = list(enumerate(self._shares(worker), start=worker.comm.world_size))
        self._versions = dict.fromkeys((peer for peer, _ in self._links), 0)
        self._receive_buffers = {peer: share.empty_vector() for peer, share in self._links}
        self._staleness: list[int] = []
        self._leads: list[int] = []
        self._is_asked_to_stop = False
        self._is_withheld = self._was_withheld = False
        if worker.comm.rank == 0:
            with self._comm.uncounted():
                for peer, share in self._links:
                    self._comm.send(share.flatten(share.parameters), peer, START)

    def step(self) -> None:
        if self.average == "weights":
            self.worker.optimizer.step()
            return
        # In the other modes the server multiplies the learning rate by the weight instead.
        scale = self.worker.weight if self.mode == "sync" else 1.0
        self._exchange([[gradient_of(p) for p in share.parameters] for _, share in self._links], scale)

    def after_step(self) -> None:
        if self.average == "weights":
            self._exchange([list(share.parameters) for _, share in self._links], self.worker.weight)

    def withhold(self) -> None:
        self._is_withheld = True

    def was_withheld(self) -> bool:
        return self._was_withheld

    def _exchange(self, tensors: Sequence[Sequence[Tensor]], scale: float) -> None:
        kind, versions, sends = WITHHELD if self._is_withheld else STEP, dict(self._versions), []
        for (peer, share), own in zip(self._links, tensors, strict=True):
            vector = share.flatten(own).mul_(scale).to(share.wire_dtype)
            note = Note(kind, self.worker.weight, self._versions[peer], share.rates)
            sends += [self._comm.isend(note.to_tensor(), peer, NOTE), self._comm.isend(vector, peer, VECTOR)]
        self._receive_answers()
        # Synchronous servers make no update if any worker has withheld its gradients, so their version stays.
        self._was_withheld = self._is_withheld if self.is_asynchronous else self._versions == versions
        self._is_withheld = False
        for send in sends:
            send.wait()

    def _receive_answers(self) -> None:
        answers = {peer: torch.zeros(ANSWER_FIELDS, dtype=torch.float64) for peer, _ in self._links}
        receives = [
            receive
            for peer, _ in self._links
            for receive in (
                self._comm.irecv(answers[peer], peer, ANSWER),
                self._comm.irecv(self._receive_buffers[peer], peer, TENSORS),
            )
        ]
        for receive in receives:
            receive.wait()
        for peer, share in self._links:
            unpack(self._receive_buffers[peer], share.parameters)
            version, staleness, is_stop_requested, lead = (int(value) for value in answers[peer].tolist())
            self._versions[peer] = version
            self._is_asked_to_stop |= bool(is_stop_requested)
            if staleness != NOT_COUNTED:
                self._staleness.append(staleness)
                self._leads.append(lead)

    def keep_alive(self) -> None:
        # A synchronous server receives from rank 0 first. Notes of other ranks would block until rank 0 sends.
        if self.is_asynchronous or self._comm.rank == 0:
            with self._comm.uncounted():
                self._send_note(ALIVE)

    def ask_all_to_stop(self) -> None:
        with self._comm.uncounted():
            self._send_note(STOP_REQUEST)

    @property
    def is_asked_to_stop(self) -> bool:
        return self._is_asked_to_stop

    def wait_for_others(self) -> None:
        # It is enough to ask one server, because all workers tell the same server that they are done.
        peer, share = self._links[0]
        answer = torch.zeros(ANSWER_FIELDS, dtype=torch.float64)
        num_running = 1
        with self._comm.uncounted():
            self._comm.send(Note(DONE, 0.0, 0, share.rates).to_tensor(), peer, NOTE)
            while num_running:
                self._comm.recv(answer, peer, ANSWER)
                num_running = int(answer[-1])

    def finish(self) -> None:
        self._send_note(FINISH)
        self._receive_answers()
        for peer, _ in self._links:
            self._comm.send(torch.zeros(1), peer, START)

    def save_servers(self, request: CheckpointRequest) -> None:
        self._send_request(SAVE, request)

    def restore_servers(self, request: CheckpointRequest) -> None:
        self._send_request(RESTORE, request)
        with self._comm.uncounted():
            self._receive_answers()

    def _send_request(self, kind: int, request: CheckpointRequest) -> None:
        if self.is_asynchronous or self._comm.rank == 0:
            with self._comm.uncounted():
                for peer, share in self._links:
                    send_request(self._comm, peer, kind, request, share)

    def state_dict(self) -> dict[str, Tensor]:
        return {
            **super().state_dict(),
            "versions": torch.tensor([self._versions[peer] for peer, _ in self._links]),
            "staleness": torch.tensor(self._staleness, dtype=torch.int64),
            "leads": torch.tensor(self._leads, dtype=torch.int64),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self._versions = dict(zip(self._versions, state["versions"].tolist(), strict=True))
        self._staleness, self._leads = state["staleness"].tolist(), state["leads"].tolist()

    def _send_note(self, kind: int) -> None:
        for peer, share in self._links:
            self._comm.send(Note(kind, 0.0, 0, share.rates).to_tensor(), peer, NOTE)

    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:  # noqa: ARG002
        operations = []
        for peer, indices in enumerate(split_tensors(tensors, self.servers), start=world_size):
            numel = sum(tensors[index].numel for index in indices)
            itemsize = max(tensors[index].itemsize for index in indices)
            wire_itemsize = self.codec.cast.itemsize if isinstance(self.codec, Cast) else itemsize
            operations += [
                Operation("send", NUMBER_BYTES * (NOTE_FIELDS + len(indices)), peer),
                Operation("send", numel * wire_itemsize, peer),
                Operation("recv", NUMBER_BYTES * ANSWER_FIELDS, peer),
                Operation("recv", numel * itemsize, peer),
            ]
        return operations

    def buffer_bytes(self, tensors: Sequence[TensorSpec], rank: int, world_size: int) -> int:  # noqa: ARG002
        """Estimate the bytes of one vector to send and one to receive."""
        return 2 * sum(tensor.nbytes for tensor in tensors)

    def metrics(self) -> Json:
        """Return the distribution of this worker's lead over the slowest worker, in steps; empty with mode=sync."""
        return {"lead_steps": distribution(self._leads)} if self.is_asynchronous else {}

    def _shares(self, worker: Worker) -> list[Share]:
        self.check_model(worker.specs)
        wire_dtype = self.codec.cast if isinstance(self.codec, Cast) else None
        return [Share(worker, indices, wire_dtype) for indices in split_tensors(worker.specs, self.servers)]
