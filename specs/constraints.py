"""Constructs that a task's constraints forbid, found in a source's text before a compiler sees it.

A tripwire that tells an author early, with a line: what holds a candidate is the judge. Comments and texts are not
code. Where a gate judges, the rules marked `gated` always hold; they are what its judge refuses later. A program that
times itself (`harness: self_contained`) needs events, prints and files, and only the task's own words bind it.

Words of `constraints` that switch a rule on, sentence by sentence and in any case:

    single stream, one stream, the given stream, no cudaStreamCreate            streams
    no (CUDA) graphs                                                            graphs
    no | not | never | without ... cuBLAS, cuDNN, FlashInfer, ...               that library
    no | not | never | without ... external library, library beyond             every known library
    no OpenMP, one thread                                                       threads
    no inline asm | assembly | PTX;  no intrinsics                              these
    cta_group::1 only, no cta_group::2                                          cta_group::2 in inline PTX
    no mma.sync, not use mma.sync                                               mma.sync in inline PTX, and wmma
"""

from __future__ import annotations

import io
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specs.normal import TOKEN, too_wide
from specs.schema import ArgumentKind, Harness, Language, Task

MOST_TOLD = 12  # flags that a message lists


@dataclass(frozen=True, slots=True, order=True)
class Flag:
    line: int
    construct: str  # as it stands in the source
    rule: str  # what does not hold


@dataclass(frozen=True, slots=True)
class Setting:
    """What the rules need to know of a task beside its constraints."""

    self_contained: bool = False  # the source is a program with a clock of its own
    stream: bool = True  # the interface gives a stream, so launches must name it
    folders: bool = False  # the build has include folders of its own


def flagged_in(source: str, task: Task) -> list[Flag]:
    """What a task's constraints forbid in a candidate of it, in order of lines."""
    given = task.interface.of(ArgumentKind.STREAM) if task.interface else ()
    setting = Setting(
        self_contained=task.harness is Harness.SELF_CONTAINED,
        stream=bool(given),
        folders=any(re.match(r"-(?:I|isystem|iquote)", flag) for flag in task.build.flags),
    )
    return flagged(source, task.language, task.constraints, setting)


def flagged(source: str, language: Language, constraints: Sequence[str], setting: Setting = Setting()) -> list[Flag]:
    views = _python_views(source) if language is Language.TRITON else _c_views(source)
    sentences = [part for text in constraints for part in re.split(r"(?<=[.;!?])\s+|\n", text)]
    gated = not setting.self_contained

    found: set[Flag] = set()
    for rule in _RULES:
        if language in rule.languages and ((gated and rule.gated) or _said(rule.said, sentences)):
            found |= set(_matches(rule, views))
    for library in _LIBRARIES:
        if (gated and library.gated) or _said(library.said, sentences):
            found |= set(_uses(library, views, language))
    if gated:
        imports = _foreign_imports(views) if language is Language.TRITON else _foreign_headers(views, setting.folders)
        told = {flag.line for flag in found}
        found |= {flag for flag in imports if flag.line not in told}  # what a library's own rule has said is said
        if language is Language.CUDA and setting.stream:
            found |= set(_launches_elsewhere(views))
    return sorted(found)


def told(flags: Sequence[Flag]) -> str:
    """One line a flag."""
    lines = [f"line {flag.line}: {flag.construct}: {flag.rule}" for flag in flags[:MOST_TOLD]]
    if len(flags) > MOST_TOLD:
        lines.append(f"and {len(flags) - MOST_TOLD} more")
    return "\n".join(lines)


# ---------------------------------------------------------------- what is code


@dataclass(frozen=True, slots=True)
class _Views:
    """The source twice, each time with blanks for what is left out: positions and lines are the same in both."""

    code: str  # without comments and texts
    texts: str  # nothing but texts: where inline assembly stands
    starts: list[int]  # positions at which lines begin
    included: list[tuple[int, str]]  # headers with their lines

    def line(self, position: int) -> int:
        return bisect_right(self.starts, position)


_INCLUDE = re.compile(r"^[ \t]*\#[ \t]*(?:include|include_next|import)\b[ \t]*([^\n]*)", re.MULTILINE)
_HEADER = re.compile(r"[<\"]([^>\"\n]+)[>\"]")


def _views(source: str, comments: Sequence[tuple[int, int]], texts: Sequence[tuple[int, int]]) -> _Views:
    uncommented = _blanked(source, comments)
    code = _blanked(uncommented, texts)
    around = [(end, start) for (_, end), (start, _) in zip([(0, 0), *texts], [*texts, (len(source), 0)], strict=True)]
    starts = [0, *(match.end() for match in re.finditer("\n", source))]
    included = []
    for match in _INCLUDE.finditer(uncommented):
        header = _HEADER.match(match.group(1))
        included.append((bisect_right(starts, match.start()), header.group(1) if header else match.group(1).strip()))
    return _Views(code, _blanked(source, around), starts, included)


def _blanked(source: str, spans: Sequence[tuple[int, int]]) -> str:
    parts, at = [], 0
    for start, end in spans:
        parts += [source[at:start], "\n".join(" " * len(line) for line in source[start:end].split("\n"))]
        at = end
    return "".join([*parts, source[at:]])


def _c_views(source: str) -> _Views:
    comments: list[tuple[int, int]] = []
    texts: list[tuple[int, int]] = []
    for match in TOKEN.finditer(source):
        if match.lastgroup == "comment":
            comments.append(match.span())
        elif match.lastgroup in ("literal", "raw", "fence"):
            texts.append(match.span())
    return _views(source, comments, texts)


def _python_views(source: str) -> _Views:
    comments: list[tuple[int, int]] = []
    texts: list[tuple[int, int]] = []
    starts = [0, *(match.end() for match in re.finditer("\n", source))]
    if too_wide(source):
        return _views(source, comments, texts)  # as below
    try:
        for token in tokenize.generate_tokens(io.StringIO(source, newline="").readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                (row, column), (last_row, last_column) = token.start, token.end
                span = (starts[row - 1] + column, starts[last_row - 1] + last_column)
                (comments if token.type == tokenize.COMMENT else texts).append(span)
    except (tokenize.TokenError, SyntaxError, IndexError):
        pass  # not Python: the compiler will say so, and what was not understood counts as code
    return _views(source, comments, texts)


# ---------------------------------------------------------------- rules by pattern

_C = frozenset({Language.CPP, Language.CUDA})
_CUDA = frozenset({Language.CUDA})
_TRITON = frozenset({Language.TRITON})


@dataclass(frozen=True, slots=True)
class _Rule:
    says: str
    languages: frozenset[Language]
    code: re.Pattern[str] | None = None
    texts: re.Pattern[str] | None = None
    gated: bool = False
    said: re.Pattern[str] | None = None  # of a sentence that switches it on


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_RULES = (
    _Rule(
        "work goes into the given stream only",
        _CUDA,
        re.compile(
            r"\bcudaStream(?:Create\w*|Destroy|Legacy|PerThread|WaitEvent|AttachMemAsync|CopyAttributes|SetAttribute)\b"
            r"|\bcuStream(?:Create\w*|Destroy\w*|WaitEvent)\b"
        ),
        gated=True,
        said=_words(r"\b(?:single|one|given|caller's)\s+(?:cuda\s+)?streams?\b|\bno\s+cudaStreamCreate"),
    ),
    _Rule(
        "no graphs",
        _CUDA,
        re.compile(r"\bcudaStream(?:Begin|End|Update)\w*Capture\w*|\b(?:cudaGraph(?!ics)|cuGraph(?!ics))\w*"),
        gated=True,
        said=_words(r"\bno\s+(?:cuda\s+)?graphs?\b"),
    ),
    _Rule("no events", _CUDA, re.compile(r"\b(?:cudaEvent|cuEvent)\w*"), gated=True),
    _Rule(
        "no callbacks on the host",
        _CUDA,
        re.compile(r"\b(?:cudaLaunchHostFunc|cudaStreamAddCallback|cuLaunchHostFunc|cuStreamAddCallback)\w*"),
        gated=True,
    ),
    _Rule(
        "no memory that host and device share",
        _CUDA,
        re.compile(
            r"\bcuda(?:MallocManaged|MallocHost|Host(?:Alloc|Register|GetDevicePointer)|MemPrefetch\w*|MemAdvise\w*)\b"
            r"|\b__managed__\b|\bcuMem(?:AllocManaged|HostAlloc|HostRegister\w*)\b"
        ),
        gated=True,
    ),
    _Rule(
        "no threads or processes of its own",
        _C,
        re.compile(
            r"\bstd::(?:j?thread|async|execution::par\w*)\b|\bp?thread_(?:create|detach|join)\b|\bthrd_create\b"
            r"|\#[ \t]*pragma[ \t]+omp[ \t]+(?!simd\b)\w+|\bomp_[a-z]\w*|\btbb::\w+"
            r"|(?<![\w.:>])(?:v?fork|exec[lv]p?e?|posix_spawnp?|popen)\s*(?=\()"
        ),
        gated=True,
        said=_words(r"\bno\s+openmp\b|\bone\s+thread\s*(?:[.;,]|$)"),
    ),
    _Rule(
        "no files, environment, clock, output or system calls",
        _C,
        re.compile(
            r"\bstd::(?:i?o?fstream|filesystem|chrono|cout|cerr|clog|cin|random_device|getenv|system|v?f?printf|puts"
            r"|fopen|freopen|fread|fwrite)\b"
            r"|(?<![\w.:>])(?:fopen|freopen|fread|fwrite|v?f?printf|puts|fputs|perror|secure_getenv|getenv|setenv|putenv"
            r"|system|dlopen|dlsym|mmap|mprotect|syscall|ptrace|socket|gettimeofday|clock_gettime|usleep|nanosleep)"
            r"\s*(?=\()"
        ),
        gated=True,
    ),
    _Rule(
        "no files, environment, output or text that is run",
        _TRITON,
        re.compile(
            r"(?<![\w.])(?:open|exec|eval|compile|input|breakpoint|print|__import__)\s*(?=\()|\btl\.device_print\b"
        ),
        gated=True,
    ),
    _Rule(
        "no inline assembly",
        _C | _TRITON,
        re.compile(r"\b(?:asm|__asm|__asm__)\b|\binline_asm_elementwise\b"),
        said=_words(r"\b(?:no|without|not\s+use|never\s+use)\s+(?:any\s+)?(?:inline\s+)?(?:asm|assembly|ptx)\b"),
    ),
    _Rule(
        "no intrinsics",
        _C,
        re.compile(r"\b_mm(?:256|512)?_\w+|\b__builtin_(?:ia32|neon|aarch64)_\w+|\bv(?:ld|st)[1-4]q?_\w+"),
        said=_words(r"\b(?:no|without|not\s+use|never\s+use)\s+(?:any\s+)?(?:\w+\s+)?intrinsics\b"),
    ),
    _Rule(
        "cta_group::1 only",
        _CUDA,
        texts=re.compile(r"\bcta_group::2\b"),
        said=_words(r"\bcta_group::1\s+only\b|\bno\s+cta_group::2\b"),
    ),
    _Rule(
        "no mma.sync",
        _CUDA,
        re.compile(r"\b(?:nvcuda::)?wmma::\w+"),
        re.compile(r"\bw?mma\.sync\b"),
        said=_words(r"\b(?:no|not\s+use|never\s+use|without)\s+mma\.sync\b"),
    ),
)


def _said(pattern: re.Pattern[str] | None, sentences: Sequence[str]) -> bool:
    return pattern is not None and any(pattern.search(sentence) for sentence in sentences)


def _matches(rule: _Rule, views: _Views) -> Iterator[Flag]:
    for pattern, view in ((rule.code, views.code), (rule.texts, views.texts)):
        if pattern is not None:
            for match in pattern.finditer(view):
                yield Flag(views.line(match.start()), " ".join(match.group().split()), rule.says)


# ---------------------------------------------------------------- libraries


@dataclass(frozen=True, slots=True)
class _Library:
    """Something that does the kernel's work for it."""

    name: str
    uses: re.Pattern[str]  # names of it in code, and modules of it in Python
    headers: re.Pattern[str]
    said: re.Pattern[str]
    gated: bool = True


_NEGATED = r"\b(?:no|not|never|without)\b.*"
_ANY_LIBRARY = rf"{_NEGATED}\b(?:external|other|vendor|black-box)\b[^.;]*\blibrar|\bno\s+library\s+beyond\b"


def _library(name: str, prose: str, uses: str, headers: str, *, gated: bool = True) -> _Library:
    said = _words(rf"{_NEGATED}(?<![\w/.-])(?:{prose})(?![\w-])|{_ANY_LIBRARY}")
    return _Library(name, re.compile(rf"\b(?:{uses})"), re.compile(rf"(?:{headers})"), said, gated)


_LIBRARIES = (
    _library("cuBLAS", "cublas(?:lt)?", r"cublas(?:Lt|Xt)?[A-Z]\w*|CUBLAS_\w+", "cublas"),
    _library("cuDNN", "cudnn", r"cudnn[A-Z]\w*", "cudnn"),
    _library(
        "cuSPARSE, cuSOLVER, cuFFT, cuTENSOR and NCCL",
        "cusparse|cusolver|cufft|cutensor|nccl",
        r"(?:cusparse|cusolver(?:Dn)?|cufft|cutensor|nccl)[A-Z]\w*",
        "cusparse|cusolver|cufft|cutensor|nccl",
    ),
    _library("cuRAND", "curand", r"curand(?:[A-Z]|_(?:init|uniform|normal))\w*", "curand"),
    _library("Thrust", "thrust", r"thrust::\w+", "thrust/"),
    _library("CUB's device algorithms", "cub", r"cub::Device\w+", "cub/device/"),
    _library(
        "CUTLASS's device API",
        "cutlass(?:'s)? device(?: api)?",
        r"cutlass::(?:gemm|conv|reduction)::device::\w+",
        "cutlass/(?:gemm|conv|reduction)/device/",
    ),
    # Its parts are building blocks; a task has to forbid it by name.
    _Library(
        "CUTLASS",
        re.compile(r"\b(?:cutlass|cute)::\w+"),
        re.compile("cutlass/|cute/"),
        _words(r"\b(?:no|without|not\s+use|never\s+use)\s+(?:any\s+)?cutlass\b"),
        gated=False,
    ),
    _library("FlashInfer", "flashinfer", r"flashinfer::\w+", "flashinfer/"),
    _library("FlashMLA", "flashmla", r"(?:flash_?mla|kerutils)::\w+", r"flash_?mla|kerutils|csrc/sm\d+"),
    _library("FlashAttention", "flash-?attention", r"flash_attn::\w+", "flash_attn|flash_fwd|flash_api"),
    _library("DeepGEMM", "deepgemm", r"deep_gemm::\w+", "deep_gemm"),
    _library("Marlin", "marlin", r"marlin::\w+", "marlin"),
    _library("vLLM", "vllm", r"vllm::\w+", "vllm"),
    _library("TensorRT-LLM", "trt-?llm|tensorrt(?:-?llm)?", r"(?:tensorrt_llm|nvinfer\d*)::\w+", "tensorrt|NvInfer"),
    _library(
        "PyTorch",
        "pytorch|torch",
        r"(?:torch(?:::|\.)\w+|(?:import|from)\s+torch\b|at::Tensor\b|c10::\w+)",
        "torch/|ATen/|c10/",
    ),
    _library(
        "MKL, OpenBLAS and other BLAS",
        "mkl|openblas|blas|lapack|onemkl|onednn|eigen",
        r"(?:cblas_\w+|mkl_(?:set|get|malloc|free|jit|sparse)\w*|MKL_\w+|openblas_(?:set|get)\w*|LAPACKE_\w+"
        r"|[sdcz]gem[mv]_\b|dnnl::\w+|Eigen::\w+)",
        "mkl|cblas|openblas|lapack|f77blas|dnnl|oneapi/|Eigen/",
    ),
)


def _uses(library: _Library, views: _Views, language: Language) -> Iterator[Flag]:
    rule = f"{library.name} may not do the kernel's work"
    if language is not Language.TRITON:
        for line, header in views.included:
            if library.headers.search(header):
                yield Flag(line, f"#include <{header}>", rule)
    for match in library.uses.finditer(views.code):
        start = views.code.rfind("\n", 0, match.start()) + 1
        if not _INCLUDE.match(views.code, start):  # told above
            yield Flag(views.line(match.start()), " ".join(match.group().split()), rule)


# ---------------------------------------------------------------- headers and modules


def _listed(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STANDARD = _listed(
    """
    algorithm any array atomic bit bitset cassert cctype cerrno cfenv cfloat charconv cinttypes climits cmath compare
    complex concepts cstdarg cstddef cstdint cstdio cstdlib cstring deque exception expected experimental/simd
    functional initializer_list iterator limits list map memory memory_resource new numbers numeric optional queue
    random ranges ratio set span stack stdexcept string string_view tuple type_traits typeindex typeinfo
    unordered_map unordered_set utility valarray variant vector version
    alloca.h assert.h complex.h ctype.h errno.h fenv.h float.h inttypes.h limits.h malloc.h math.h memory.h stdalign.h
    stdarg.h stdbool.h stddef.h stdint.h stdio.h stdlib.h string.h tgmath.h
    arm_neon.h arm_sve.h arm_bf16.h arm_fp16.h cpuid.h
    cuda.h cudaTypedefs.h cooperative_groups.h mma.h device_launch_parameters.h math_constants.h vector_types.h
    vector_functions.h builtin_types.h device_functions.h
    """
)
_STANDARD_FAMILIES = re.compile(
    r"\w*intrin\.h|cuda_(?!profiler)\w+\.h(?:pp)?|sm_\d+_\w+\.h(?:pp)?|(?:cooperative_groups|cub|cuda|nv|cute|cutlass)/[\w/.+-]+"
)
_MODULES = re.compile(r"(?:triton|math|__future__)(?:\.|\s|,|$)")
_IMPORT = re.compile(r"^[ \t]*(?:import|from)[ \t]+(\.*[\w.]*)", re.MULTILINE)


def _foreign_headers(views: _Views, folders: bool) -> Iterator[Flag]:
    for line, header in views.included:
        known = header in _STANDARD or _STANDARD_FAMILIES.fullmatch(header)
        outside = header.startswith(("/", "~")) or ".." in header.split("/")
        if outside or not (known or folders):
            yield Flag(line, f"#include <{header}>", "no headers but the language's own and CUDA's")


def _foreign_imports(views: _Views) -> Iterator[Flag]:
    for match in _IMPORT.finditer(views.code):
        if not _MODULES.match(match.group(1)):
            yield Flag(views.line(match.start(1)), f"import {match.group(1)}", "no modules but triton and math")


# ---------------------------------------------------------------- launches

_DEFAULT_STREAM = re.compile(r"0|NULL|nullptr|\{\}|cudaStreamDefault|\(cudaStream_t\)\s*0")


def _launches_elsewhere(views: _Views) -> Iterator[Flag]:
    """Launches that name no stream, or the default one."""
    code = views.code
    at = code.find("<<<")
    while at >= 0:
        end = code.find(">>>", at)
        if end < 0:
            return
        given = _arguments(code[at + 3 : end])
        passed_on = "__VA_ARGS__" in given[-1] or given[-1].endswith("...")
        if not passed_on and (len(given) < 4 or _DEFAULT_STREAM.fullmatch(given[3])):
            shown = " ".join(code[at : end + 3].split())
            yield Flag(views.line(at), shown[:80], "launch with the given stream as the fourth argument")
        at = code.find("<<<", end)


def _arguments(text: str) -> list[str]:
    """Parted at the commas that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]
