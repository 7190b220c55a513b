"""Read recorded runs: ``tachograph.runs.list()`` and ``tachograph.runs.open(id)``.

Reading needs no hub and does not disturb one: you can read a run while a hub is writing it, up to the latest
transaction.

Other packages import the names below, and nothing else. Only this package knows SQL: it offers typed queries, which
take ``rows`` of an open run, and one writer, which the hub uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tachograph.recording.lazy_names import load_name

if TYPE_CHECKING:
    from tachograph.runs.annotations import annotate as annotate
    from tachograph.runs.annotations import check_change as check_change
    from tachograph.runs.blocks import Bucket as Bucket
    from tachograph.runs.blocks import Sample as Sample
    from tachograph.runs.blocks import extra_points as extra_points
    from tachograph.runs.blocks import nonfinite_name as nonfinite_name
    from tachograph.runs.blocks import spell_nonfinite as spell_nonfinite
    from tachograph.runs.blocks import to_browser_value as to_browser_value
    from tachograph.runs.buckets import QUANTILE_ERROR as QUANTILE_ERROR
    from tachograph.runs.buckets import Buckets as Buckets
    from tachograph.runs.buckets import HistogramValues as HistogramValues
    from tachograph.runs.buckets import state_value as state_value
    from tachograph.runs.catalogue import Stamp as Stamp
    from tachograph.runs.catalogue import Stamps as Stamps
    from tachograph.runs.catalogue import Summary as Summary
    from tachograph.runs.catalogue import UnknownRunError as UnknownRunError
    from tachograph.runs.catalogue import check_store as check_store
    from tachograph.runs.catalogue import count_events as count_events
    from tachograph.runs.catalogue import count_points as count_points
    from tachograph.runs.catalogue import count_user_events as count_user_events
    from tachograph.runs.catalogue import delete_run_files as delete_run_files
    from tachograph.runs.catalogue import find_run as find_run
    from tachograph.runs.catalogue import find_unfinished_runs as find_unfinished_runs
    from tachograph.runs.catalogue import list_runs as list  # noqa: A004 - as users type it: tachograph.runs.list()
    from tachograph.runs.catalogue import list_runs as list_runs
    from tachograph.runs.catalogue import open_run as open  # noqa: A004 - the same
    from tachograph.runs.catalogue import open_run as open_run
    from tachograph.runs.catalogue import read_stamp as read_stamp
    from tachograph.runs.catalogue import run_files as run_files
    from tachograph.runs.catalogue import run_id_of as run_id_of
    from tachograph.runs.catalogue import runs_to_prune as runs_to_prune
    from tachograph.runs.columns import RUN_FACTS as RUN_FACTS
    from tachograph.runs.columns import choose_runs as choose_runs
    from tachograph.runs.columns import columns_as_json as columns_as_json
    from tachograph.runs.columns import format_columns as format_columns
    from tachograph.runs.columns import format_overview as format_overview
    from tachograph.runs.columns import sort_by as sort_by
    from tachograph.runs.columns import sort_key as sort_key
    from tachograph.runs.curve_writer import CurveEnds as CurveEnds
    from tachograph.runs.curve_writer import CurveWriter as CurveWriter
    from tachograph.runs.drawing import CurveDrawing as CurveDrawing
    from tachograph.runs.ending import Ending as Ending
    from tachograph.runs.ending import Failure as Failure
    from tachograph.runs.ending import ending_as_json as ending_as_json
    from tachograph.runs.ending import find_ending as find_ending
    from tachograph.runs.ending import read_failed_processes as read_failed_processes
    from tachograph.runs.export import describe_run as describe_run
    from tachograph.runs.export import export_lines as export_lines
    from tachograph.runs.export import export_metric_lines as export_metric_lines
    from tachograph.runs.export import format_size as format_size
    from tachograph.runs.export import printable as printable
    from tachograph.runs.export import write_csv as write_csv
    from tachograph.runs.export import write_jsonl as write_jsonl
    from tachograph.runs.file import AbandonedError as AbandonedError
    from tachograph.runs.file import Look as Look
    from tachograph.runs.file import RunFile as RunFile
    from tachograph.runs.file import look as look
    from tachograph.runs.file_lock import is_in_use as is_in_use
    from tachograph.runs.file_system import warn_of_network as warn_of_network
    from tachograph.runs.filter import FilterError as FilterError
    from tachograph.runs.filter import column_value as column_value
    from tachograph.runs.filter import parse_filter as parse_filter
    from tachograph.runs.kept_calls import CallsOfFunction as CallsOfFunction
    from tachograph.runs.kept_calls import ProfiledCall as ProfiledCall
    from tachograph.runs.kept_calls import read_kept_calls as read_kept_calls
    from tachograph.runs.losses import Loss as Loss
    from tachograph.runs.losses import describe_losses as describe_losses
    from tachograph.runs.losses import loss_name as loss_name
    from tachograph.runs.losses import read_losses as read_losses
    from tachograph.runs.losses import sort_losses as sort_losses
    from tachograph.runs.members import INTERVALS as INTERVALS
    from tachograph.runs.members import NODE as NODE
    from tachograph.runs.members import SECOND as SECOND
    from tachograph.runs.members import Member as Member
    from tachograph.runs.members import MemberStart as MemberStart
    from tachograph.runs.members import find_job_name as find_job_name
    from tachograph.runs.members import parse_object as parse_object
    from tachograph.runs.members import parse_pairs as parse_pairs
    from tachograph.runs.members import rank_of as rank_of
    from tachograph.runs.members import read_dictionary as read_dictionary
    from tachograph.runs.members import read_display_name as read_display_name
    from tachograph.runs.members import read_members as read_members
    from tachograph.runs.members import read_notes as read_notes
    from tachograph.runs.members import read_program as read_program
    from tachograph.runs.members import read_tags as read_tags
    from tachograph.runs.members import silence_limit as silence_limit
    from tachograph.runs.newest_points import NewestPoints as NewestPoints
    from tachograph.runs.newest_points import read_newest_points as read_newest_points
    from tachograph.runs.open_stores import OpenStores as OpenStores
    from tachograph.runs.open_stores import descriptor_limit as descriptor_limit
    from tachograph.runs.open_stores import raise_descriptor_limit as raise_descriptor_limit
    from tachograph.runs.outline import read_outline as read_outline
    from tachograph.runs.parquet import WriteParquet as WriteParquet
    from tachograph.runs.parquet import parquet_writer as parquet_writer
    from tachograph.runs.point_records import LARGEST as LARGEST
    from tachograph.runs.point_records import POINT as POINT
    from tachograph.runs.point_records import SCHEMA_KEY as SCHEMA_KEY
    from tachograph.runs.point_records import SEQ as SEQ
    from tachograph.runs.point_records import STREAM as STREAM
    from tachograph.runs.point_records import CurveRecord as CurveRecord
    from tachograph.runs.point_records import DerivedPoints as DerivedPoints
    from tachograph.runs.point_records import PackedRecord as PackedRecord
    from tachograph.runs.point_records import decode_curve_record as decode_curve_record
    from tachograph.runs.queries import CurveExtent as CurveExtent
    from tachograph.runs.queries import EventRow as EventRow
    from tachograph.runs.queries import SeriesKey as SeriesKey
    from tachograph.runs.queries import Shape as Shape
    from tachograph.runs.queries import StoredBlock as StoredBlock
    from tachograph.runs.queries import StoredSample as StoredSample
    from tachograph.runs.queries import StoredState as StoredState
    from tachograph.runs.queries import count_samples as count_samples
    from tachograph.runs.queries import count_series as count_series
    from tachograph.runs.queries import count_spreads as count_spreads
    from tachograph.runs.queries import find_process as find_process
    from tachograph.runs.queries import find_state as find_state
    from tachograph.runs.queries import has_restarted as has_restarted
    from tachograph.runs.queries import read_block_near as read_block_near
    from tachograph.runs.queries import read_blocks as read_blocks
    from tachograph.runs.queries import read_curve_extents as read_curve_extents
    from tachograph.runs.queries import read_curves as read_curves
    from tachograph.runs.queries import read_definitions as read_definitions
    from tachograph.runs.queries import read_event_spans as read_event_spans
    from tachograph.runs.queries import read_events as read_events
    from tachograph.runs.queries import read_failures as read_failures
    from tachograph.runs.queries import read_first_event_time as read_first_event_time
    from tachograph.runs.queries import read_gauge_stretch as read_gauge_stretch
    from tachograph.runs.queries import read_instances as read_instances
    from tachograph.runs.queries import read_last_block as read_last_block
    from tachograph.runs.queries import read_last_event_time as read_last_event_time
    from tachograph.runs.queries import read_last_increase as read_last_increase
    from tachograph.runs.queries import read_last_numbers as read_last_numbers
    from tachograph.runs.queries import read_last_sample as read_last_sample
    from tachograph.runs.queries import read_launch_span as read_launch_span
    from tachograph.runs.queries import read_newest_event_number as read_newest_event_number
    from tachograph.runs.queries import read_newest_samples as read_newest_samples
    from tachograph.runs.queries import read_nonfinite_values as read_nonfinite_values
    from tachograph.runs.queries import read_sample_span as read_sample_span
    from tachograph.runs.queries import read_sample_time_before as read_sample_time_before
    from tachograph.runs.queries import read_samples as read_samples
    from tachograph.runs.queries import read_samples_of_block as read_samples_of_block
    from tachograph.runs.queries import read_samples_since as read_samples_since
    from tachograph.runs.queries import read_series as read_series
    from tachograph.runs.queries import read_shape as read_shape
    from tachograph.runs.queries import read_starts as read_starts
    from tachograph.runs.queries import read_states as read_states
    from tachograph.runs.queries import read_stream_events as read_stream_events
    from tachograph.runs.queries import read_streams as read_streams
    from tachograph.runs.recorded import BEGIN as BEGIN
    from tachograph.runs.recorded import CALLS as CALLS
    from tachograph.runs.recorded import END as END
    from tachograph.runs.recorded import FAILURE as FAILURE
    from tachograph.runs.recorded import Curve as Curve
    from tachograph.runs.recorded import CurveSummary as CurveSummary
    from tachograph.runs.recorded import Moment as Moment
    from tachograph.runs.recorded import Point as Point
    from tachograph.runs.recorded import Process as Process
    from tachograph.runs.recorded import RecordedMetric as RecordedMetric
    from tachograph.runs.recorded import StoredEvent as StoredEvent
    from tachograph.runs.recorded import count_thinned_curves as count_thinned_curves
    from tachograph.runs.recorded import decode_event as decode_event
    from tachograph.runs.recorded import json_value as json_value
    from tachograph.runs.recorded import plain_attributes as plain_attributes
    from tachograph.runs.recorded import read_run_start as read_run_start
    from tachograph.runs.recorded import read_stat_units as read_stat_units
    from tachograph.runs.recorded import stat_definition as stat_definition
    from tachograph.runs.recorded_series import KINDS as KINDS
    from tachograph.runs.recorded_series import Interval as Interval
    from tachograph.runs.recorded_series import Kind as Kind
    from tachograph.runs.recorded_series import Reading as Reading
    from tachograph.runs.recorded_series import RecordedSeries as RecordedSeries
    from tachograph.runs.run import Run as Run
    from tachograph.runs.sequence_numbers import SequenceNumbers as SequenceNumbers
    from tachograph.runs.spread import MOST_BUCKETS as MOST_BUCKETS
    from tachograph.runs.spread import check_histogram as check_histogram
    from tachograph.runs.spread import join_histograms as join_histograms
    from tachograph.runs.spread import pack_histogram as pack_histogram
    from tachograph.runs.spread import subtract_histogram as subtract_histogram
    from tachograph.runs.spread import trim_buckets as trim_buckets
    from tachograph.runs.spread import unpack_extremes as unpack_extremes
    from tachograph.runs.spread import unpack_histogram as unpack_histogram
    from tachograph.runs.store import MOST_RUN_BYTES as MOST_RUN_BYTES
    from tachograph.runs.store import Store as Store
    from tachograph.runs.store import StoreError as StoreError
    from tachograph.runs.store import Writer as Writer
    from tachograph.runs.store import make_runs_folder as make_runs_folder
    from tachograph.runs.store import run_path as run_path
    from tachograph.runs.store import runs_folder as runs_folder
    from tachograph.runs.thinning import thin_points as thin_points
    from tachograph.runs.thinning import thin_samples as thin_samples
    from tachograph.runs.window import Drawing as Drawing
    from tachograph.runs.window import read_stretches as read_stretches
    from tachograph.runs.writer import RunWriter as RunWriter
    from tachograph.runs.writer import StartKey as StartKey
    from tachograph.runs.writer import open_transaction as open_transaction
    from tachograph.runs.x_axis import XAxis as XAxis

__all__ = [
    "Bucket",
    "CallsOfFunction",
    "Curve",
    "CurveDrawing",
    "CurveSummary",
    "Ending",
    "Failure",
    "HistogramValues",
    "Interval",
    "Loss",
    "Moment",
    "Point",
    "Process",
    "ProfiledCall",
    "Reading",
    "RecordedMetric",
    "RecordedSeries",
    "Run",
    "Summary",
    "list",
    "open",
]

# By the module that has them; each is loaded at its first use.
_NAMES = {
    "annotations": ("annotate", "check_change"),
    "blocks": ("Bucket", "Sample", "extra_points", "nonfinite_name", "spell_nonfinite", "to_browser_value"),
    "buckets": ("Buckets", "HistogramValues", "QUANTILE_ERROR", "state_value"),
    "catalogue": (
        "Stamp",
        "Stamps",
        "Summary",
        "UnknownRunError",
        "check_store",
        "count_events",
        "count_points",
        "count_user_events",
        "delete_run_files",
        "find_run",
        "find_unfinished_runs",
        "list_runs",
        "open_run",
        "read_stamp",
        "run_files",
        "run_id_of",
        "runs_to_prune",
    ),
    "columns": (
        "RUN_FACTS",
        "choose_runs",
        "columns_as_json",
        "format_columns",
        "format_overview",
        "sort_by",
        "sort_key",
    ),
    "curve_writer": ("CurveEnds", "CurveWriter"),
    "drawing": ("CurveDrawing",),
    "ending": ("Ending", "Failure", "ending_as_json", "find_ending", "read_failed_processes"),
    "export": (
        "describe_run",
        "export_lines",
        "export_metric_lines",
        "format_size",
        "printable",
        "write_csv",
        "write_jsonl",
    ),
    "file": ("AbandonedError", "Look", "RunFile", "look"),
    "file_lock": ("is_in_use",),
    "file_system": ("warn_of_network",),
    "filter": ("FilterError", "column_value", "parse_filter"),
    "kept_calls": ("CallsOfFunction", "ProfiledCall", "read_kept_calls"),
    "losses": ("Loss", "describe_losses", "loss_name", "read_losses", "sort_losses"),
    "members": (
        "INTERVALS",
        "Member",
        "MemberStart",
        "NODE",
        "SECOND",
        "find_job_name",
        "parse_object",
        "parse_pairs",
        "rank_of",
        "read_dictionary",
        "read_display_name",
        "read_members",
        "read_notes",
        "read_program",
        "read_tags",
        "silence_limit",
    ),
    "newest_points": ("NewestPoints", "read_newest_points"),
    "open_stores": ("OpenStores", "descriptor_limit", "raise_descriptor_limit"),
    "outline": ("read_outline",),
    "parquet": ("WriteParquet", "parquet_writer"),
    "point_records": (
        "CurveRecord",
        "DerivedPoints",
        "LARGEST",
        "POINT",
        "PackedRecord",
        "SCHEMA_KEY",
        "SEQ",
        "STREAM",
        "decode_curve_record",
    ),
    "queries": (
        "CurveExtent",
        "EventRow",
        "SeriesKey",
        "Shape",
        "StoredBlock",
        "StoredSample",
        "StoredState",
        "count_samples",
        "count_series",
        "count_spreads",
        "find_process",
        "find_state",
        "has_restarted",
        "read_block_near",
        "read_blocks",
        "read_curve_extents",
        "read_curves",
        "read_definitions",
        "read_event_spans",
        "read_events",
        "read_failures",
        "read_first_event_time",
        "read_gauge_stretch",
        "read_instances",
        "read_last_block",
        "read_last_event_time",
        "read_last_increase",
        "read_last_numbers",
        "read_last_sample",
        "read_launch_span",
        "read_newest_event_number",
        "read_newest_samples",
        "read_nonfinite_values",
        "read_sample_span",
        "read_sample_time_before",
        "read_samples",
        "read_samples_of_block",
        "read_samples_since",
        "read_series",
        "read_shape",
        "read_starts",
        "read_states",
        "read_stream_events",
        "read_streams",
    ),
    "recorded": (
        "BEGIN",
        "CALLS",
        "Curve",
        "CurveSummary",
        "END",
        "FAILURE",
        "Moment",
        "Point",
        "Process",
        "RecordedMetric",
        "StoredEvent",
        "count_thinned_curves",
        "decode_event",
        "json_value",
        "plain_attributes",
        "read_run_start",
        "read_stat_units",
        "stat_definition",
    ),
    "recorded_series": ("Interval", "KINDS", "Kind", "Reading", "RecordedSeries"),
    "run": ("Run",),
    "sequence_numbers": ("SequenceNumbers",),
    "spread": (
        "MOST_BUCKETS",
        "check_histogram",
        "join_histograms",
        "pack_histogram",
        "subtract_histogram",
        "trim_buckets",
        "unpack_extremes",
        "unpack_histogram",
    ),
    "store": ("MOST_RUN_BYTES", "Store", "StoreError", "Writer", "make_runs_folder", "run_path", "runs_folder"),
    "thinning": ("thin_points", "thin_samples"),
    "window": ("Drawing", "read_stretches"),
    "writer": ("RunWriter", "StartKey", "open_transaction"),
    "x_axis": ("XAxis",),
}
_ALIASES = {"list": "list_runs", "open": "open_run"}  # as users type them


def __getattr__(name: str) -> Any:
    return load_name(__name__, _NAMES, _ALIASES.get(name, name))
