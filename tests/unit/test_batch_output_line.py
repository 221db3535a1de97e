"""Lines of a batch's files, as the wire has them."""

import json

from gateway.batches.output_line import answered, server_error_body, unanswered


def test_an_answer_is_put_into_its_line_as_it_is() -> None:
    body = b'{"choices": [1.0, "\\u00e9\\u0000"],  "n":1e2}'
    line = answered("batch_req_1_2", "mine", http_request_id="req_3", status=200, body=body)
    assert line == (
        '{"id":"batch_req_1_2","custom_id":"mine","response":{"status_code":200,"request_id":"req_3","body":'
        + body.decode()
        + '},"error":null}'
    )


def test_a_line_that_never_ran_has_a_code_and_no_response() -> None:
    line = unanswered("batch_req_1_2", 'a "name"\n', code="batch_expired", message="Too late.")
    assert json.loads(line) == {
        "id": "batch_req_1_2",
        "custom_id": 'a "name"\n',
        "response": None,
        "error": {"code": "batch_expired", "message": "Too late."},
    }


def test_a_custom_id_with_a_line_break_stays_on_its_line() -> None:
    assert "\n" not in unanswered("r", "two\nlines", code="c", message="m")


def test_a_fault_of_ours_reads_like_every_other_error() -> None:
    assert json.loads(server_error_body("It failed.")) == {
        "error": {"message": "It failed.", "type": "server_error", "param": None, "code": "server_error"}
    }
