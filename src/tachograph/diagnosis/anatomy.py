"""The anatomy of a step on the training thread: hooks around calls that append marks, and none on a module.

A hook appends a kind and a time to the marks of its thread, and calls the original. Marks become steps on the timer, in
:mod:`tachograph.diagnosis.phases`. In code that ``torch.compile`` traces, the hooks of an optimizer are nothing.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from time import perf_counter_ns as clock
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary, ref

from tachograph.diagnosis.anatomy_ddp import Communication
from tachograph.diagnosis.anatomy_device import EVERY, DeviceClock
from tachograph.diagnosis.phases import (
    BACKWARD,
    BACKWARD_END,
    CHECKPOINT,
    CHECKPOINT_END,
    COMPILE,
    COMPILE_END,
    DATA,
    DATA_END,
    EVAL_MODE,
    EVALUATION,
    EVALUATION_END,
    EXHAUSTED,
    ITERATOR,
    NO_GRAD,
    NO_GRAD_END,
    OPENED,
    OPTIMIZER,
    OPTIMIZER_END,
    SCALER,
    SCALER_END,
    Mark,
    StepMachine,
    split,
)
from tachograph.identity.import_hooks import ImportHook
from tachograph.recording.interrupts import pass_on
from tachograph.recording.trace_context import current_span, traces
from tachograph.recording.wrapping import wraps

MOST_MARKS = 65_536  # of a thread, until they are taken
_MOST_LANES = 64
# Names of torch that are no part of its documented interface (2.1 to 2.15): the iterators of DataLoaders, the way to
# the autograd engine, what dynamo calls around a compilation, how it leaves a function's own
# frame alone, and what calls a module's forward.
_ITERATOR = "_BaseDataLoaderIter"
_WORKERS = "_num_workers"
_ENGINE = "_engine_run_backward"
_CALLBACKS = "callback_handler"
_SKIP = "skip_code"
_CALL = "_call_impl"
_NEAR = 6  # functions between a module's forward and one in which it turns gradients off

ident = threading.get_ident


class Lane:
    """The marks of one thread.

    Args:
        device: see below.
        communication: see below.
        stepping: called now and then while it trains.

    Attributes:
        marks: those that wait to be taken.
        add: appends one; while a step is timed on the device, it records an event, too.
        due: from that time on the ends of optimizer steps are told to :meth:`stepped`; where the program traces, all.
        device: times some steps on its device.
        communication: has the times for which its backwards wait for other ranks.
        evaluated: a weak reference to the module whose ``eval()`` was called last; None before the first.
        is_without_gradients: the last mark of their mode says that they are off.
        thread: its name.
    """

    __slots__ = (
        *("_next", "_stepping", "add", "communication", "device", "due", "evaluated", "is_without_gradients"),
        *("marks", "thread"),
    )

    def __init__(self, device: DeviceClock, communication: Communication, stepping: Callable[[], object]) -> None:
        self._stepping = stepping
        self.marks: deque[Mark] = deque(maxlen=MOST_MARKS)
        self.add: Callable[[Mark], object] = self.marks.append
        self.due = self._next = 0
        self.device, self.communication = device, communication
        self.evaluated: Callable[[], Any] | None = None
        self.is_without_gradients = False
        self.thread = threading.current_thread().name

    def stepped(self, now: int, optimizer: int) -> None:
        """Append the end of an optimizer's step with the program's current span, and look after the device."""
        trace_id, span_id, _ = current_span()
        self.add((OPTIMIZER_END, now, optimizer, trace_id, span_id) if trace_id else (OPTIMIZER_END, now, optimizer))
        if now >= self._next:
            self._next = now + EVERY
            self._stepping()
            self.communication.read(now)
            if self.device.stepped(now, optimizer):
                self.add = self._add_timed
        self.due = 0 if traces() else self._next

    def _add_timed(self, mark: Mark) -> None:
        self.marks.append(mark)
        if not self.device.mark(mark):
            self.add = self.marks.append

    def take(self) -> tuple[list[Mark], bool]:
        """Return the marks that wait, and whether earlier ones were lost as nothing took them."""
        marks = self.marks
        lost = len(marks) >= MOST_MARKS
        return [marks.popleft() for _ in range(len(marks))], lost


class Anatomy:
    """The hooks, until they are closed: each is made right after the import of its module.

    Args:
        failed: called with an exception of ours.

    Attributes:
        lanes: the marks of each thread that trains or fetches batches, by the thread's id.
        stepping: called with each new lane, and twenty times a second at most while it trains; in its thread.
    """

    def __init__(self, failed: Callable[[Exception], object]) -> None:
        self.lanes: dict[int, Lane] = {}
        self.stepping: Callable[[], object] = _rest
        self._failed = failed
        self._torch: Any = None
        self._parallel: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._undo: list[Callable[[], object]] = []
        self._closed = False
        self._codes = [
            *_codes(Anatomy, Communication, Lane, DeviceClock, StepMachine),
            *(size_of.__code__, _first_dimension.__code__),
            *(split.__code__, _is_called_by.__code__),
        ]
        self._skip: Callable[[CodeType], object] = _nothing
        hooks: dict[str, Callable[[Any], object]] = {
            "torch": self._hook_torch,
            "torch.distributed.checkpoint": self._hook_distributed_saving,
            "safetensors.torch": self._hook_safetensors,
            "torch.utils.data.dataloader": self._hook_loader,
            "accelerate.data_loader": self._hook_accelerate,
            "stable_baselines3.common.evaluation": self._hook_evaluation,
            "sb3_contrib.common.maskable.evaluation": self._hook_evaluation,
            "torch.nn.parallel.distributed": self._hook_parallel,
            "torch._dynamo.eval_frame": self._hook_dynamo,
            "torch._dynamo.callback": self._hook_compiler,
        }
        self._imports = [ImportHook(module, hook) for module, hook in hooks.items()]

    def close(self) -> None:
        """Restore torch. A name that another library has patched since keeps its patch, and ours notes nothing."""
        self._closed = True
        for hook in self._imports:
            hook.cancel()
        while self._undo:
            self._undo.pop()()
        self.lanes.clear()

    def reset_in_child(self) -> None:
        """Forget the parent's marks, after a fork."""
        self.lanes.clear()

    def _lane(self) -> Lane | None:
        """Return a new lane of this thread; None where there is none for it."""
        if self._closed or self._torch is None or len(self.lanes) >= _MOST_LANES:
            return None
        self.stepping()
        device, communication = DeviceClock(self._torch, self._failed), Communication(self._parallel, self._failed)
        return self.lanes.setdefault(ident(), Lane(device, communication, self.stepping))

    def _hook_torch(self, torch: ModuleType | Any) -> None:
        self._torch = torch
        self._hook_optimizers(torch)
        self._hook_backward(torch.autograd)
        self._hook_gradient_modes(torch)
        self._hook_saving(torch)
        self._hook_scaler(torch)

    def _untraced(self, made: Any) -> Any:
        """Return a function of ours that dynamo does not compile where it is called from a frame that it left."""
        self._codes.append(made.__code__)
        self._skip(made.__code__)
        return made

    def _hook_dynamo(self, eval_frame: Any) -> None:
        self._skip = getattr(eval_frame, _SKIP, self._skip)
        for code in self._codes:
            self._skip(code)

    def _replace(self, owner: Any, name: str, made: Any) -> None:
        original = vars(owner)[name]
        setattr(owner, name, made)

        def undo() -> None:
            if vars(owner).get(name) is made:
                setattr(owner, name, original)

        self._undo.append(undo)

    def _hook_optimizers(self, torch: Any) -> None:
        lanes, new_lane, is_compiling = self.lanes, self._lane, torch.compiler.is_dynamo_compiling
        optimizers = import_module("torch.optim.optimizer")

        def begins(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if is_compiling():  # a constant for dynamo: nothing of ours is traced
                return
            lane = lanes.get(ident()) or new_lane()
            if lane is not None:
                lane.add((OPTIMIZER, clock(), id(optimizer)))

        def ends(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if is_compiling():
                return
            lane = lanes.get(ident())
            if lane is not None:
                now = clock()
                if now < lane.due:
                    lane.add((OPTIMIZER_END, now, id(optimizer)))
                else:
                    lane.stepped(now, id(optimizer))

        self._undo.append(optimizers.register_optimizer_step_pre_hook(self._untraced(begins)).remove)
        self._undo.append(optimizers.register_optimizer_step_post_hook(self._untraced(ends)).remove)

    def _hook_backward(self, autograd: Any) -> None:
        original = getattr(autograd, _ENGINE)
        self._replace(autograd, _ENGINE, self._around(original, BACKWARD, BACKWARD_END, begins_lane=True))

    def _hook_gradient_modes(self, torch: Any) -> None:
        lanes, is_compiling, module = self.lanes, torch.compiler.is_dynamo_compiling, torch.nn.Module
        for mode in (torch.no_grad, torch.inference_mode):
            self._replace(mode, "__enter__", self._turning_off(mode.__enter__, torch))
            self._replace(mode, "__exit__", self._turning_on(mode.__exit__, torch))
        original = module.eval

        @wraps(original)
        def evaluating(self: Any) -> Any:
            if not is_compiling():
                lane = lanes.get(ident())
                if lane is not None:
                    lane.evaluated = ref(self)
                    lane.add((EVAL_MODE, clock()))
            return original(self)

        self._replace(module, "eval", self._untraced(evaluating))

    def _turning_off(self, original: Any, torch: Any) -> Any:
        lanes, is_compiling, has_gradients = self.lanes, torch.compiler.is_dynamo_compiling, torch.is_grad_enabled
        forward = getattr(torch.nn.Module, _CALL).__code__

        @wraps(original)
        def entering(self: Any) -> Any:
            if is_compiling():
                return original(self)
            lane = lanes.get(ident())
            # A region within a module's forward is a part of that: rotary embeddings have one, and codebooks.
            if lane is None or not has_gradients() or _is_called_by(forward):
                return original(self)
            entered = original(self)
            if not has_gradients():  # they stay on in inference_mode(False)
                module = None if lane.evaluated is None else lane.evaluated()
                lane.is_without_gradients = True
                lane.add((NO_GRAD, clock(), module is not None and not module.training))
            return entered

        return self._untraced(entering)

    def _turning_on(self, original: Any, torch: Any) -> Any:
        lanes, is_compiling, has_gradients = self.lanes, torch.compiler.is_dynamo_compiling, torch.is_grad_enabled

        @wraps(original)
        def leaving(self: Any, *about: Any) -> Any:
            left = original(self, *about)
            if not is_compiling():
                lane = lanes.get(ident())
                if lane is not None and lane.is_without_gradients and has_gradients():
                    lane.is_without_gradients = False
                    lane.add((NO_GRAD_END, clock()))
            return left

        return self._untraced(leaving)

    def _hook_evaluation(self, evaluation: Any) -> None:
        # Episodes that a policy plays for an evaluation look like those that it learns from.
        made = self._around(evaluation.evaluate_policy, EVALUATION, EVALUATION_END)
        self._replace(evaluation, "evaluate_policy", made)

    def _hook_saving(self, torch: Any) -> None:
        made = self._around(torch.save, CHECKPOINT, CHECKPOINT_END)
        for owner in (torch, torch.serialization):  # it pickles by the latter
            self._replace(owner, "save", made)

    def _hook_distributed_saving(self, checkpoint: Any) -> None:
        for name in {"save", "async_save"} & {*vars(checkpoint)}:  # since torch 2.2 and 2.3
            made = self._around(getattr(checkpoint, name), CHECKPOINT, CHECKPOINT_END)
            for owner in (checkpoint, sys.modules[f"{checkpoint.__name__}.state_dict_saver"]):
                self._replace(owner, name, made)

    def _hook_safetensors(self, safetensors: Any) -> None:
        self._replace(safetensors, "save_file", self._around(safetensors.save_file, CHECKPOINT, CHECKPOINT_END))

    def _hook_scaler(self, torch: Any) -> None:
        scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
        original, hooked = scaler.step, torch.optim.Optimizer
        marking = self._around(original, SCALER, SCALER_END)

        @wraps(original)
        def stepping(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            # One without hooks leaves no mark in between, as if its step had been left out.
            return (marking if isinstance(optimizer, hooked) else original)(self, optimizer, *args, **kwargs)

        self._replace(scaler, "step", self._untraced(stepping))

    def _around(self, original: Any, begin: int, end: int, *, begins_lane: bool = False) -> Any:
        lanes, new_lane = self.lanes, self._lane

        @wraps(original)
        def marking(*args: Any, **kwargs: Any) -> Any:
            lane = lanes.get(ident())
            if lane is None:
                lane = new_lane() if begins_lane else None
                if lane is None:
                    return original(*args, **kwargs)
            lane.add((begin, clock()))
            try:
                return original(*args, **kwargs)
            finally:
                lane.add((end, clock()))

        return self._untraced(marking)

    def _hook_loader(self, dataloader: Any) -> None:
        iterator = getattr(dataloader, _ITERATOR)
        self._replace(iterator, "__init__", self._beginning(iterator.__init__))
        self._replace(iterator, "__next__", self._fetching(iterator.__next__))
        self._replace(dataloader.DataLoader, "__iter__", self._opening(dataloader.DataLoader.__iter__))

    def _opening(self, opened: Any) -> Any:
        lanes, new_lane = self.lanes, self._lane

        @wraps(opened)
        def opening(loader: Any) -> Any:
            lane = lanes.get(ident()) or new_lane()
            if lane is None:
                return opened(loader)
            lane.add((DATA, clock()))
            made = None
            try:
                made = opened(loader)  # starts the workers
            finally:
                lane.add((OPENED, clock(), id(made)))
            return made

        return self._untraced(opening)

    def _beginning(self, init: Any) -> Any:
        lanes = self.lanes

        @wraps(init)
        def beginning(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            lane = lanes.get(ident())
            if lane is not None:
                lane.add((ITERATOR, clock(), id(self), getattr(self, _WORKERS, -1)))

        return self._untraced(beginning)

    def _hook_accelerate(self, loaders: Any) -> None:
        # These fetch a batch ahead: the one that they hand out counts, and theirs are within that call.
        for owner in (loaders.DataLoaderShard, loaders.DataLoaderDispatcher):
            self._replace(owner, "__iter__", self._iterating(owner.__iter__))

    def _iterating(self, iterate: Any) -> Any:
        lanes, new_lane = self.lanes, self._lane
        fetch = self._fetching(next)

        @wraps(iterate)
        def iterating(self: Any) -> Iterator[Any]:
            batches = iterate(self)
            lane = lanes.get(ident()) or new_lane()
            if lane is not None:
                lane.add((ITERATOR, clock(), id(batches), getattr(self, "num_workers", -1)))
            while True:
                try:
                    batch = fetch(batches)
                except StopIteration:
                    return
                yield batch

        return self._untraced(iterating)

    def _fetching(self, fetch: Any) -> Any:
        lanes, new_lane, failed = self.lanes, self._lane, self._failed
        tensor = sys.modules["torch"].Tensor
        length: Callable[[Any], int] = tensor.__base__.__len__  # that of Tensor is Python around it

        @wraps(fetch)
        def fetching(self: Any) -> Any:
            lane = lanes.get(ident()) or new_lane()
            if lane is None:
                return fetch(self)
            lane.add((DATA, clock()))
            try:
                batch = fetch(self)
            except BaseException:
                lane.add((EXHAUSTED, clock(), id(self)))
                raise
            now = clock()
            try:
                # The shortest way for most: a list whose first item is a tensor. 0 may be one without a dimension.
                if batch.__class__ is list and batch and batch[0].__class__ is tensor and (samples := length(batch[0])):
                    tokens = 0
                else:
                    samples, tokens = size_of(batch)
            except Exception as error:  # noqa: BLE001 - a batch of the program's own classes
                pass_on(error)
                samples, tokens = -1, 0
                failed(error)
            lane.add((DATA_END, now, id(self), samples, tokens))
            return batch

        return self._untraced(fetching)

    def _hook_parallel(self, distributed: Any) -> None:
        owner, modules = distributed.DistributedDataParallel, self._parallel
        init = owner.__init__

        @wraps(init)
        def making(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            modules[self] = ident()

        self._replace(owner, "__init__", self._untraced(making))

    def _hook_compiler(self, callback: Any) -> None:
        handler = getattr(callback, _CALLBACKS, None)
        if handler is None:
            return
        lanes = self.lanes

        def begins(*_about: Any) -> None:
            lane = lanes.get(ident())
            if lane is not None:
                lane.add((COMPILE, clock()))

        def ends(*_about: Any) -> None:
            lane = lanes.get(ident())
            if lane is not None:
                lane.add((COMPILE_END, clock()))

        handler.register_start_callback(begins)
        handler.register_end_callback(ends)
        self._undo.append(lambda: handler.remove_start_callback(begins))
        self._undo.append(lambda: handler.remove_end_callback(ends))


def _codes(*classes: type) -> Iterator[CodeType]:
    for each in classes:
        yield from (method.__code__ for method in vars(each).values() if isinstance(method, FunctionType))


def _rest() -> None:
    """Do nothing: nothing takes the marks yet."""


def _nothing(_code: CodeType) -> None:
    """Do nothing: dynamo is not there."""


def _is_called_by(code: CodeType) -> bool:
    """Tell whether a function with this code is among the nearest callers of the hook."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - documented by CPython
    for _ in range(_NEAR):  # the whole stack would take longer than many a forward
        if frame is None:
            return False
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


def size_of(batch: Any) -> tuple[int, int]:
    """Return the samples and the tokens of a batch; -1 samples where it has no tensor with a first dimension.

    Samples are the first dimension of its first tensor, or of ``input_ids``, whose elements are its tokens.
    """
    for _ in range(3):  # a batch may be a pair of inputs and labels, the first of which has several parts
        if isinstance(batch, Mapping):
            ids = batch.get("input_ids")
            if ids is not None and (samples := _first_dimension(ids)) >= 0:
                return samples, int(ids.numel())
            batch = next(iter(batch.values()), None)
        elif isinstance(batch, list | tuple):
            batch = batch[0] if batch else None
        else:
            break
    return _first_dimension(batch), 0


def _first_dimension(value: Any) -> int:
    """Return it; -1 where there is none."""
    if getattr(value, "is_nested", False):  # such a tensor has no shape
        return int(value.size(0))
    shape = getattr(value, "shape", None)
    return int(shape[0]) if shape else -1
