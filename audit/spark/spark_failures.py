"""Failures of Spark as one sentence each: its own messages are pages of stack traces. Pure."""

import re

SHIP_OPTION = "--ship-package"
LENGTH_MAX = 300
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_OLD_MODULE = re.compile(r"^(?:ImportError|AttributeError): (.*minibroker\..*)$", re.MULTILINE)
_NO_PYTHON = re.compile(
    r'Cannot run program "([^"]+)"(?: \(in directory "[^"]*"\))?: (?:error=\d+, |Exec failed, error: \d+ )?(.*)'
)
_PYTHON_VERSIONS = re.compile(r"different version.{0,20}: (\d+\.\d+) than that in driver:? (\d+\.\d+)", re.DOTALL)
_EXECUTOR_LOST = re.compile(r"ExecutorLostFailure \(executor \S+ exited [^)]*\)(?: Reason: (.*))?")
_ENDED_BY_MASTER = re.compile(r"Application has been killed\. Reason: (.*)")
_START_REFUSED = re.compile(r'^Exception in thread "main" [\w.$]+: (.*)$', re.MULTILINE)
_PYTHON_ERROR = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception|Exit|Interrupt)): ?(.*)$", re.MULTILINE)
_JAVA_CAUSE = re.compile(r"^Caused by: (.*)$", re.MULTILINE)


def sentence_of(error: str, standard_error: str = "") -> str:
    """The cause of a failed job, from the error's text and the JVM's standard error."""
    known = _of_python(error) or _of_executors(error, standard_error)
    if known is None:
        causes = _JAVA_CAUSE.findall(error)
        lines = [line.strip() for line in error.splitlines() if line.strip()]
        informative = [line for line in lines if not line.startswith(("An error occurred while calling", "at "))]
        known = (causes or informative or lines or ["no cause was given"])[0]
    return " ".join(known.split())[:LENGTH_MAX]


def _of_python(error: str) -> str | None:
    """A failure of a Python worker."""
    missing = _MISSING_MODULE.search(error)
    if missing:
        return (
            f"a worker's Python lacks the module {missing[1]}: install minibroker[spark] there, or give {SHIP_OPTION}"
        )
    versions = _PYTHON_VERSIONS.search(error)
    if versions or "PYTHON_VERSION_MISMATCH" in error:
        which = (
            f"Python {versions[1]}, the driver Python {versions[2]}" if versions else "another Python than the driver"
        )
        return f"a worker runs {which}: set PYSPARK_PYTHON to an equal one that the workers have"
    absent = _NO_PYTHON.search(error)
    if absent:
        return (
            f"a worker cannot start its Python {absent[1]} ({absent[2].strip()}): set PYSPARK_PYTHON to one that every"
            " worker has"
        )
    old = _OLD_MODULE.search(error)
    if old:
        return f"a worker has another version of minibroker ({old[1]}): install this one there, or give {SHIP_OPTION}"
    if "OutOfMemoryError" in error:
        return "an executor's JVM ran out of memory: raise spark.executor.memory (or spark.driver.memory)"
    if "MemoryError" in error or "Python worker exited unexpectedly" in error:
        return (
            "a Python worker ended in the middle of its task, most likely out of memory: give it more, or audit fewer"
            " directories at once"
        )
    raised = [
        (name, text) for name, text in _PYTHON_ERROR.findall(error) if name not in ("Py4JJavaError", "PythonException")
    ]
    python = error.find("Traceback (most recent call last)")
    return f"{raised[-1][0]}: {raised[-1][1]}" if raised and python >= 0 else None


def _of_executors(error: str, standard_error: str) -> str | None:
    """A failure of the executors."""
    ended = _ENDED_BY_MASTER.search(standard_error)
    if ended:
        reason = ended[1].strip()
        if "FAILED" in reason:
            return f"executors end as soon as they start ({reason}): see the workers' logs"
        return f"Spark's master ended the application: {reason}"
    lost = _EXECUTOR_LOST.search(error)
    if lost:
        return f"the executors of a task were lost again and again: {(lost[1] or 'no reason was given').strip()}"
    if "SparkContext was shut down" in error or "stopped SparkContext" in error:
        return "Spark was stopped while the audit ran"
    return None


def start_sentence(error: str, standard_error: str) -> str:
    """Why the JVM or the context did not start."""
    refused = _START_REFUSED.search(standard_error)
    if refused:
        return " ".join(refused[1].split())[:LENGTH_MAX]
    return sentence_of(error, standard_error)
