"""What users define: activities and workflows, and the registry that knows them by name."""

from holdfast.definitions.activities import Activity as Activity
from holdfast.definitions.activities import ActivityOptions as ActivityOptions
from holdfast.definitions.activities import NotReady as NotReady
from holdfast.definitions.activities import activity as activity
from holdfast.definitions.activities import as_activity as as_activity
from holdfast.definitions.activities import plain_activity as plain_activity
from holdfast.definitions.flow import Flow as Flow
from holdfast.definitions.functions import check_plain as check_plain
from holdfast.definitions.functions import function_name as function_name
from holdfast.definitions.functions import is_async as is_async
from holdfast.definitions.functions import options_given as options_given
from holdfast.definitions.functions import source_line as source_line
from holdfast.definitions.names import DEFAULT_QUEUE as DEFAULT_QUEUE
from holdfast.definitions.names import check_message_id as check_message_id
from holdfast.definitions.names import check_queue as check_queue
from holdfast.definitions.names import check_run_id as check_run_id
from holdfast.definitions.queues import Queue as Queue
from holdfast.definitions.registry import Registry as Registry
from holdfast.definitions.workflows import HOOK_NAMES as HOOK_NAMES
from holdfast.definitions.workflows import Hooks as Hooks
from holdfast.definitions.workflows import Workflow as Workflow
from holdfast.definitions.workflows import hooks_given as hooks_given
from holdfast.definitions.workflows import workflow as workflow
