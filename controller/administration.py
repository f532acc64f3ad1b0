"""Requests of administrators: create topics, delete topics, change settings.

Owns: these requests from their checks to their answers. Leaves to others: elections. To the core a new topic is an
event, like one that another tool has written.
"""

import asyncio
import random
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Sequence
from functools import partial

from minibroker.controller.active_controller import ActiveController
from minibroker.controller.cluster_store import BROKER_SETTINGS_MAX, TopicExists
from minibroker.controller.core.deletion import deletion_text, missing_brokers
from minibroker.controller.core.events import DeletionsRequested, TopicConfigsChanged, TopicsChanged
from minibroker.controller.core.topic_creation import AcceptValue, TopicDraw, TopicRefusal, exists_already, plan_topic
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResult,
    ConfigOperation,
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ResourceType,
    Response,
)
from minibroker.protocol.znodes import broker_config_path, topic_config_path

CONFIRM_SECONDS_MAX = 2.0
"""How long an answer waits for brokers to confirm. A broker that hangs must not turn a success into a failure; a client
that asks a broker too early gets an error that it may retry."""


class Administration:
    """Bound to one active controller."""

    def __init__(
        self,
        active: ActiveController,
        chance: random.Random,
        accept_topic_value: AcceptValue,
        accept_broker_value: AcceptValue,
    ) -> None:
        self._active = active
        self._chance = chance
        self._accept_topic_value = accept_topic_value
        self._accept_broker_value = accept_broker_value

    # ------------------------------------------------------------------------------------------------------- create
    async def create_topics(self, request: CreateTopicsRequest) -> Response:
        """Answer when the new partitions have leaders and brokers know them, or at the request's timeout."""
        await self._active.gathered()
        response = await self._create(request)
        if not request.validate_only:
            await self._until_answered(request.timeout_ms)
        return response

    async def _create(self, request: CreateTopicsRequest) -> Response:
        """Queue each topic on its own: an election does not wait for all of them."""
        times_named = Counter(topic.name for topic in request.topics)
        results: list[CreatableTopicResult] = []
        planned = 0
        for requested in request.topics:
            if times_named[requested.name] > 1:
                text = f"topic {requested.name} is named more than once"
                results.append(_not_created(requested, TopicRefusal(ErrorCode.INVALID_REQUEST, text)))
                continue
            answer = await self._active.run_queued(partial(self._create_one, requested, request.validate_only, planned))
            if not isinstance(answer, CreateTopicsResponse):
                return _cut_short(answer, results)
            results += answer.topics
            planned += sum(each.num_partitions for each in answer.topics if not each.error_code)
        return CreateTopicsResponse(topics=results)

    async def _create_one(self, requested: CreatableTopic, validate_only: bool, planned: int) -> Response:
        return CreateTopicsResponse(topics=[await self._created(requested, validate_only, planned)])

    async def _created(self, requested: CreatableTopic, validate_only: bool, planned: int) -> CreatableTopicResult:
        active = self._active
        draw = TopicDraw(
            topic_id=urlsafe_b64encode(self._chance.getrandbits(128).to_bytes(16, "big")).decode().rstrip("="),
            first_broker=self._chance.randrange(1_000_000),
            shift=self._chance.randrange(1_000_000),
        )
        plan = plan_topic(active.state, requested, self._accept_topic_value, draw, planned)
        if isinstance(plan, TopicRefusal):
            return _not_created(requested, plan)
        if not validate_only:
            try:
                await active.store.create_topic(requested.name, plan)
            except TopicExists:
                refusal = TopicRefusal(ErrorCode.TOPIC_ALREADY_EXISTS, exists_already(requested.name))
                return _not_created(requested, refusal)
            await active.process(TopicsChanged(added={requested.name: plan}))
        return CreatableTopicResult(
            name=requested.name,
            topic_id="" if validate_only else plan.topic_id,
            num_partitions=len(plan.assignment),
            replication_factor=len(plan.assignment[0]),
        )

    # ------------------------------------------------------------------------------------------------------- delete
    async def delete_topics(self, request: DeleteTopicsRequest) -> Response:
        """Answer when the topics are gone, or at the request's timeout, with what the deletion waits for:
        REPLICA_NOT_AVAILABLE for brokers that are down, REQUEST_TIMED_OUT for others."""
        response = await self._delete(request)
        if not isinstance(response, DeleteTopicsResponse):
            return response
        waits = [self._until_erased(result, request.timeout_ms) for result in response.responses]
        return DeleteTopicsResponse(responses=list(await asyncio.gather(*waits)))

    async def _delete(self, request: DeleteTopicsRequest) -> Response:
        """Queue each topic on its own, as those that are created: an election does not wait for all of them."""
        results: list[DeletableTopicResult] = []
        for name in dict.fromkeys(request.topic_names):
            answer = await self._active.run_queued(partial(self._delete_one, name))
            if not isinstance(answer, DeleteTopicsResponse):
                return _cut_short(answer, results)
            results += answer.responses
        return DeleteTopicsResponse(responses=results)

    async def _delete_one(self, name: str) -> Response:
        active = self._active
        code, text = ErrorCode.NONE, None
        if not active.state.settings.delete_topics:
            code, text = ErrorCode.INVALID_REQUEST, "topics cannot be deleted: delete.topic.enable is false"
        elif name not in active.state.topics:
            code, text = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}"
        else:
            await active.store.mark_deleted(name)
            await active.process(DeletionsRequested(topics=(name,)))
        return DeleteTopicsResponse(responses=[DeletableTopicResult(name=name, error_code=code, error_message=text)])

    async def _until_erased(self, result: DeletableTopicResult, timeout_ms: int) -> DeletableTopicResult:
        state = self._active.state
        if result.error_code or result.name not in state.topics:
            return result
        try:
            async with asyncio.timeout(max(0, timeout_ms) / 1000):
                await self._active.erased(result.name)
        except TimeoutError:
            text = deletion_text(state, result.name)
            is_down = result.name in state.topics and missing_brokers(state, result.name)
            code = ErrorCode.REPLICA_NOT_AVAILABLE if is_down else ErrorCode.REQUEST_TIMED_OUT
            return DeletableTopicResult(name=result.name, error_code=code, error_message=text)
        if self._active.is_over:
            text = f"topic {result.name} is marked for deletion; the next controller goes on with it"
            return DeletableTopicResult(name=result.name, error_code=ErrorCode.NOT_CONTROLLER, error_message=text)
        return result

    # ----------------------------------------------------------------------------------------------------- settings
    async def alter_configs(self, request: IncrementalAlterConfigsRequest, timeout_ms: int) -> Response:
        response = await self._alter(request)
        if not request.validate_only:
            await self._until_answered(timeout_ms)
        return response

    async def _alter(self, request: IncrementalAlterConfigsRequest) -> Response:
        """Queue each resource on its own, as topics that are created: an election does not wait for all of them."""
        results: list[AlterConfigsResult] = []
        for resource in request.resources:
            answer = await self._active.run_queued(partial(self._alter_queued, resource, request.validate_only))
            if not isinstance(answer, IncrementalAlterConfigsResponse):
                return answer
            results += answer.responses
        return IncrementalAlterConfigsResponse(responses=results)

    async def _alter_queued(self, resource: AlterConfigsResource, validate_only: bool) -> Response:
        accepted = await self._accepted(resource)
        refusal = accepted if isinstance(accepted, TopicRefusal) else None
        if not isinstance(accepted, TopicRefusal) and not validate_only:
            await self._alter_one(resource, accepted)
        result = AlterConfigsResult(
            error_code=ErrorCode.NONE if refusal is None else refusal.code,
            error_message=None if refusal is None else refusal.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        return IncrementalAlterConfigsResponse(responses=[result])

    async def _accepted(self, resource: AlterConfigsResource) -> dict[str, str | None] | TopicRefusal:
        """The changed settings as they are stored; None removes one."""
        name = resource.resource_name
        if resource.resource_type == ResourceType.TOPIC:
            if name not in self._active.state.topics:
                return TopicRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
            path, accept_value = topic_config_path(name), self._accept_topic_value
        elif resource.resource_type == ResourceType.BROKER:
            if not (name.isascii() and name.isdigit() and len(name) <= 10):
                return TopicRefusal(ErrorCode.INVALID_REQUEST, f"broker {name!r}: give the id of one broker")
            path, accept_value = broker_config_path(int(name)), self._accept_broker_value
            if int(name) not in self._active.state.brokers and not await self._active.store.may_configure(int(name)):
                stored = f"settings of {BROKER_SETTINGS_MAX:,} brokers are stored, and no more are allowed"
                return TopicRefusal(ErrorCode.INVALID_REQUEST, f"broker {name} is not registered, and {stored}")
        else:
            text = f"resource type {resource.resource_type}: settings belong to topics (2) and brokers (4)"
            return TopicRefusal(ErrorCode.INVALID_REQUEST, text)
        keys = [each.name for each in resource.configs]
        for each in resource.configs:
            if keys.count(each.name) > 1:
                return TopicRefusal(ErrorCode.INVALID_CONFIG, f"{each.name} is named more than once")
        accepted = {}
        for each in resource.configs:
            try:
                accepted[each.name] = _accepted_value(each, accept_value)
            except ValueError as problem:
                is_deleted = each.config_operation == ConfigOperation.DELETE
                # what another version has stored can be removed
                if not is_deleted or each.name not in (await self._active.store.read_config(path))[0]:
                    return TopicRefusal(ErrorCode.INVALID_CONFIG, str(problem))
                accepted[each.name] = None
        return accepted

    async def _alter_one(self, resource: AlterConfigsResource, accepted: dict[str, str | None]) -> None:
        def change(before: dict[str, str]) -> dict[str, str]:
            after = {**before, **accepted}
            return {name: value for name in sorted(after) if (value := after[name]) is not None}

        name = resource.resource_name
        if resource.resource_type == ResourceType.TOPIC:
            configs = await self._active.store.write_config(topic_config_path(name), change)
            await self._active.process(TopicConfigsChanged(topic=name, configs=configs))
        else:
            await self._active.store.write_config(broker_config_path(int(name)), change)

    async def _until_answered(self, timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(min(max(0, timeout_ms) / 1000, CONFIRM_SECONDS_MAX)):
                await self._active.channels.all_answered()
        except TimeoutError:
            return


def _accepted_value(each: AlterableConfig, accept_value: AcceptValue) -> str | None:
    """The value as it is stored, None to remove it. Raises ValueError with what is wrong with it."""
    if each.config_operation == ConfigOperation.DELETE:
        try:
            accept_value(each.name, "")
        except LookupError:  # not a setting, or not one that can be changed
            raise
        except ValueError:  # of the value, which it has not
            pass
        return None
    if each.config_operation != ConfigOperation.SET:
        raise ValueError(f"{each.name}: operation {each.config_operation} is neither set (0) nor delete (1)")
    if each.value is None:
        raise ValueError(f"{each.name}: a value is missing")
    return accept_value(each.name, each.value)


def _not_created(requested: CreatableTopic, refusal: TopicRefusal) -> CreatableTopicResult:
    return CreatableTopicResult(name=requested.name, error_code=refusal.code, error_message=refusal.message)


def _cut_short(answer: Response, before: Sequence[CreatableTopicResult | DeletableTopicResult]) -> Response:
    """The answer to a request of which a part was not done. NOT_CONTROLLER would say that nothing was."""
    if all(each.error_code for each in before):
        return answer
    text = "this controller ended before it had done all of it; the rest may be asked for again"
    return Response(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=text)
