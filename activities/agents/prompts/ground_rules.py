"""What the judge refuses, a line each: what a kernel's author has to know of docs/judging.md."""

from __future__ import annotations

from specs.schema import Harness, Language, Task


def ground_rules(task: Task) -> tuple[str, ...]:
    """The rules for a task's language and harness."""
    if task.harness is Harness.SELF_CONTAINED:
        return _SELF_REPORTED
    return (*_ALL, *{Language.CPP: _CPP, Language.CUDA: _CUDA, Language.TRITON: _TRITON}[task.language])


_ALL = (
    "Inputs are drawn afresh from a secret seed, at new addresses, for every judged and every timed call, and the "
    "answer of every call is compared with a float64 reference. Nothing can be kept, counted or looked up from one "
    "call to the next.",
    "Every config at its timed shape, every distribution of inputs, edge shapes (one row, one column, sizes one past a "
    "tile, odd and prime ones), and shapes that nobody is told: a kernel has to be right for any size the contract "
    "allows.",
    "Outputs are poisoned before a call: every element must be written. Whatever is written outside the outputs, an "
    "input among it, and whatever is written after the call has ended refuses the kernel.",
    "NaN or infinity where the reference is finite is wrong, whatever the tolerance.",
    "Two calls on the same input give the same bits wherever the contract asks for it: no sums whose order depends on "
    "timing. Outputs are the same with and without the intermediate tensors.",
    "Caches are cold when a timed call begins. A time below what the machine can do voids the sample.",
)

_CPP = (
    "One thread, no system call beyond memory: no threads, files, clocks, environment, signals or other programs.",
    "Libraries: libc, libm and libstdc++. Headers: the compiler's own. No constructors that run at load time, no "
    ".incbin, no large embedded data.",
    "Built a second time with address and undefined-behaviour sanitizers: no read past an end, not even by a full "
    "vector; no misaligned access through a typed pointer, no signed overflow, no leak.",
    "Rounding mode, flush-to-zero and direction flag are as they were when a call returns.",
)

_CUDA = (
    "All work in the given stream. Host code runs where there is no GPU and no data: its launches are written down and "
    "replayed, so it may depend on arguments and shapes, never on values, and its own time does not count.",
    "Refused: other streams, events, graphs, callbacks, managed or pinned memory, textures, device-side launches, "
    "device printf and malloc, -rdc, the driver API (cuTensorMapEncodeTiled by cudaGetDriverEntryPoint is allowed), "
    "and every vendor's library.",
    "Headers: the toolkit's own and what the task's -I flags give. Shared memory holds garbage when a block begins.",
    "Watched by compute-sanitizer on small cases: no access outside a buffer, no race, no uninitialised read, no "
    "misuse of a barrier.",
)

_TRITON = (
    "Imports: triton, triton.language (with extra.cuda and libdevice) and math. No torch; memory beside the arguments "
    "is the workspace argument's.",
    "The launcher runs for every call where there is no GPU and no data: it launches, and its own time does not count. "
    "All launches go to the given stream by themselves.",
    "No @triton.autotune with several configurations: choose by shape in the launcher. No device_print, no hooks, no "
    "inline of other files.",
    "Watched by compute-sanitizer on small cases: mask every load and store at the ragged ends.",
)

_SELF_REPORTED = (
    "One program with a main that contains kernel, reference, check and clock, and ends with status 0 within 10 "
    "minutes.",
    "It prints one result for each config at the beginning of a line of standard output: "
    '`KERNEL_RESULT {"config": "NAME", "ours_us": 18.4, "ref_us": 19.3}`. A ratio is reference time / own time.',
    "A config whose answer is wrong prints INVALID in place of its value. NaN, 0, a text, or two different values for "
    "one config count as ratio 0 or refuse the whole report.",
    "Reference and kernel are timed alike, in the same process, with cold caches, over enough repetitions to be "
    "stable. Never time less work than the reference does, and never reuse an answer.",
    "No network, no files outside /tmp, no other program.",
)
