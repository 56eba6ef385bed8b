"""Run OpenAI's unmodified clients against a server, with only a base URL and a key. Each function is a test.

Called with the base URL, the key, and the name of one test."""

import asyncio
import sys
import time

import openai
from openai import AsyncOpenAI, OpenAI

BASE_URL, KEY = sys.argv[1], sys.argv[2]
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
SLOW = "write 3000 words"


def client() -> OpenAI:
    return OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0)


def fails(kind, call, code=None):
    try:
        call()
    except kind as error:
        assert error.message and error.type, error
        assert code is None or error.code == code, (error.code, code)
        return error
    raise AssertionError(f"the call did not fail with {kind.__name__}")


def text_of(item) -> str:
    return "".join(part.text for part in item.content)


def conversations():
    api = client()
    made = api.conversations.create(
        metadata={"topic": "demo"},
        items=[
            {"type": "message", "role": "user", "content": "Hello"},
            {"role": "developer", "content": "Be brief."},
        ],
    )
    assert made.object == "conversation" and made.metadata == {"topic": "demo"}
    assert abs(made.created_at - time.time()) < 600
    assert api.conversations.retrieve(made.id).metadata == {"topic": "demo"}
    changed = api.conversations.update(made.id, metadata={"topic": "other", "more": "1"})
    assert changed.metadata == {"topic": "other", "more": "1"}
    assert [text_of(item) for item in api.conversations.items.list(made.id, order="asc")] == ["Hello", "Be brief."]
    roles = [item.role for item in api.conversations.items.list(made.id)]
    assert roles == ["developer", "user"], roles
    gone = api.conversations.delete(made.id)
    assert gone.deleted and gone.object == "conversation.deleted"
    fails(openai.NotFoundError, lambda: api.conversations.retrieve(made.id), "session.not_found")
    fails(openai.BadRequestError, lambda: api.conversations.create(metadata={"k" * 65: "v"}))


def items():
    api = client()
    id = api.conversations.create().id
    pixel = (
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    sent = [
        {"role": "user", "content": [{"type": "input_text", "text": "Look"}, {"type": "input_image", "image_url": pixel, "detail": "auto"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "A picture."}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Bonn"}'},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is sunny.", "annotations": []}]},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
    ]
    made = api.conversations.items.create(id, items=sent)
    listed = list(api.conversations.items.list(id, order="asc", limit=3, include=["message.input_image.image_url"]))
    assert [item.id for item in made.data] == [item.id for item in listed], (made.data, listed)
    assert [item.type for item in listed] == [item.get("type", "message") for item in sent]
    assert listed[0].content[1].image_url == pixel
    assert (listed[2].arguments, listed[2].call_id) == ('{"city": "Bonn"}', "c1")
    assert listed[4].output == "sunny" and text_of(listed[6]) == "It is sunny."
    assert listed[1].summary[0].text == "A picture." and listed[7].action.query == "x"
    newest = api.conversations.items.list(id, limit=2)
    assert newest.has_more and [item.id for item in newest.data] == [listed[7].id, listed[6].id]
    rest = api.conversations.items.list(id, after=newest.last_id, limit=100)
    assert not rest.has_more and len(rest.data) == 6
    for item in listed:
        assert api.conversations.items.retrieve(item.id, conversation_id=id).id == item.id
    back = api.conversations.items.delete(listed[7].id, conversation_id=id)
    assert back.id == id
    api.conversations.items.delete(listed[3].id, conversation_id=id)
    left = [item.type for item in api.conversations.items.list(id, order="asc")]
    assert left.count("function_call") == 1 and left.count("web_search_call") == 0, left
    fails(openai.NotFoundError, lambda: api.conversations.items.retrieve(listed[7].id, conversation_id=id), "entry.not_found")
    many = [{"role": "user", "content": str(number)} for number in range(21)]
    fails(openai.BadRequestError, lambda: api.conversations.items.create(id, items=many))
    fails(openai.BadRequestError, lambda: api.conversations.items.list(id, limit=101))
    assert len(api.conversations.items.create(id, items=many[:20]).data) == 20


def responses():
    api = client()
    conversation = api.conversations.create().id
    first = api.responses.create(model="demo", input="My name is Ada", conversation=conversation, metadata={"a": "b"})
    assert first.status == "completed" and "Ada" in first.output_text and first.model == "demo"
    assert first.conversation.id == conversation and first.metadata == {"a": "b"}
    assert first.usage.total_tokens == first.usage.input_tokens + first.usage.output_tokens > 0
    fails(openai.InternalServerError, lambda: api.responses.create(model="gpt-4.1", input="x", conversation=conversation), "model.no_key")
    fails(openai.BadRequestError, lambda: api.responses.create(model="gpt-oops", input="x", conversation=conversation), "model.unknown")
    second = api.responses.create(model="demo", input=[{"role": "user", "content": "what did I say?"}], conversation={"id": conversation})
    assert "My name is Ada" in second.output_text and second.model == "demo", second
    items = list(api.conversations.items.list(conversation, order="asc"))
    assert [item.role for item in items] == ["user", "assistant", "user", "assistant"]
    assert items[1].id == first.output[0].id, "the item ids differ between the response and the conversation"
    again = api.responses.retrieve(first.id)
    assert again.output_text == first.output_text and again.output == first.output
    given = api.responses.input_items.list(second.id)
    assert [text_of(item) for item in given.data] == ["what did I say?"]
    fails(openai.NotFoundError, lambda: api.responses.create(model="unknown/nothing", input="x"), "model.not_found")
    fails(openai.BadRequestError, lambda: api.responses.create(model="demo", input="x", tools=[{"type": "web_search"}]), "input.unsupported")
    fails(openai.NotFoundError, lambda: api.responses.retrieve("resp_nothing"), "response.not_found")
    fails(openai.BadRequestError, lambda: api.responses.create(model="demo", input=[]))
    api.responses.delete(second.id)
    fails(openai.NotFoundError, lambda: api.responses.retrieve(second.id), "response.not_found")
    wrong = OpenAI(base_url=BASE_URL, api_key="sapwood_wrong", max_retries=0)
    fails(openai.AuthenticationError, lambda: wrong.responses.create(model="demo", input="x"), "auth.invalid")


def chains():
    api = client()
    first = api.responses.create(model="demo", input="I like trees", instructions="Be kind.")
    assert first.instructions == "Be kind." and first.conversation is None
    one = api.responses.create(model="demo", input="what did I say?", previous_response_id=first.id)
    assert "I like trees" in one.output_text and one.instructions is None
    two = api.responses.create(model="demo", input="I like boats", previous_response_id=first.id)
    three = api.responses.create(model="demo", input="what did I say?", previous_response_id=two.id)
    assert "I like boats" in three.output_text and "what did" not in three.output_text, three.output_text
    assert three.previous_response_id == two.id
    passing = api.responses.create(model="demo", input="what did I say?", previous_response_id=one.id, store=False)
    assert "I like trees" in passing.output_text and passing.store is False
    fails(openai.NotFoundError, lambda: api.responses.retrieve(passing.id), "response.not_found")
    assert api.responses.retrieve(one.id).output_text == one.output_text
    alone = api.responses.create(model="demo", input="bye")
    api.responses.delete(alone.id)
    fails(openai.NotFoundError, lambda: api.responses.retrieve(alone.id), "response.not_found")


def streams():
    api = client()
    events = list(api.responses.create(model="demo", input="think about trees", stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed", kinds
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers)) and numbers[0] == 0, numbers
    whole = events[-1].response
    assert "response.reasoning_summary_text.delta" in kinds and len(whole.output) == 2
    text = lambda some: "".join(event.delta for event in some if event.type == "response.output_text.delta")
    assert text(events) == whole.output_text and kinds.count("response.output_text.delta") > 3
    ids = {event.item_id for event in events if event.type == "response.output_text.delta"}
    assert ids == {whole.output[1].id}
    for cut in range(0, len(events), 5):
        rest = list(api.responses.retrieve(whole.id, stream=True, starting_after=events[cut].sequence_number))
        assert text(events[: cut + 1]) + text(rest) == whole.output_text, cut
        assert [event.type for event in rest if "delta" not in event.type] == [
            kind for kind in kinds[cut + 1 :] if "delta" not in kind
        ]
    with api.responses.stream(model="demo", input="hello") as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().status == "completed"


def functions():
    api = client()
    conversation = api.conversations.create().id
    asked = api.responses.create(model="demo", input='use weather {"city": "Bonn"}', conversation=conversation, tools=[WEATHER])
    call = next(item for item in asked.output if item.type == "function_call")
    assert (asked.status, call.name, call.arguments) == ("completed", "weather", '{"city":"Bonn"}')
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    answered = api.responses.create(model="demo", input=[output], conversation=conversation, tools=[WEATHER])
    assert "weather returned" in answered.output_text and "sunny" in answered.output_text, answered.output_text
    kinds = [item.type for item in api.conversations.items.list(conversation, order="asc")]
    assert kinds == ["message", "message", "function_call", "function_call_output", "message"], kinds
    events = list(api.responses.create(model="demo", input='use weather {"city": "Rome"}', tools=[WEATHER], stream=True))
    done = next(event for event in events if event.type == "response.function_call_arguments.done")
    assert done.arguments == '{"city":"Rome"}'
    chained = api.responses.create(
        model="demo",
        previous_response_id=events[-1].response.id,
        input=[{"type": "function_call_output", "call_id": next(i.call_id for i in events[-1].response.output if i.type == "function_call"), "output": "rain"}],
    )
    assert "rain" in chained.output_text


def background():
    api = client()
    begun = api.responses.create(model="demo", input=SLOW, background=True)
    assert begun.status == "in_progress" and begun.background
    seen = []
    for event in api.responses.retrieve(begun.id, stream=True):
        seen.append(event)
        if len(seen) == 2:
            break
    ended = api.responses.cancel(begun.id)
    assert ended.status == "cancelled", ended.status
    assert api.responses.cancel(begun.id).status == "cancelled"
    rest = list(api.responses.retrieve(begun.id, stream=True, starting_after=seen[-1].sequence_number))
    assert rest[-1].type == "response.incomplete" and rest[-1].response.status == "cancelled"


def agents():
    asyncio.run(run_agents())


async def run_agents():
    from agents import Agent, OpenAIConversationsSession, Runner, function_tool
    from agents import set_default_openai_client, set_tracing_disabled

    set_default_openai_client(AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0))
    set_tracing_disabled(True)

    @function_tool
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    session = OpenAIConversationsSession()
    agent = Agent(name="Helper", instructions="Help.", model="demo", tools=[weather])
    first = await Runner.run(agent, 'use weather {"city": "Bonn"}', session=session)
    assert "sunny in Bonn" in first.final_output, first.final_output
    second = await Runner.run(agent, "what did I say?", session=session)
    assert "weather" in second.final_output, second.final_output
    streamed = Runner.run_streamed(agent, "I like rain", session=session)
    kinds = [event.type async for event in streamed.stream_events()]
    assert "raw_response_event" in kinds and "I like rain" in streamed.final_output
    items = await session.get_items()
    assert [item.get("role") or item["type"] for item in items] == [
        "user", "assistant", "function_call", "function_call_output", "assistant",
        "user", "assistant", "user", "assistant",
    ], items
    assert [item["id"] for item in await session.get_items(limit=2)] == [item["id"] for item in items[-2:]]
    popped = await session.pop_item()
    assert popped["id"] == items[-1]["id"]
    assert [item["id"] for item in await session.get_items()] == [item["id"] for item in items[:-1]]
    await session.add_items([{"role": "user", "content": str(number)} for number in range(45)])
    assert len(await session.get_items()) == len(items) - 1 + 45
    old = session.session_id
    await session.clear_session()
    assert await session.get_items() == [] and session.session_id != old


TESTS = [conversations, items, responses, chains, streams, functions, background, agents]

if __name__ == "__main__":
    wanted = sys.argv[3:]
    for test in TESTS:
        if not wanted or test.__name__ in wanted:
            test()
            print("ok", test.__name__)
