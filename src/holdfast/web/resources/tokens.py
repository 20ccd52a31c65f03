"""Tokens: who makes and revokes them over HTTP is an admin, and on record."""

from __future__ import annotations

from holdfast.looking.acting.tokens import NewToken, TokenRequest, TokenView
from holdfast.looking.views import Acted
from holdfast.web.resources.doing import ReasonQuery
from holdfast.web.resources.house import ListView
from holdfast.web.routing import ApiAnswer, ApiCall, Route


class TokenBody(TokenRequest, frozen=True, kw_only=True):
    """A token to make."""

    reason: str = ""


async def tokens(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(ListView[TokenView](await call.desk.tokens()))


async def create(call: ApiCall) -> ApiAnswer:
    body: TokenBody = call.body
    request = TokenRequest(name=body.name, role=body.role, expires_in=body.expires_in)
    return ApiAnswer(await call.desk.create_token(request, by=call.who.name, reason=body.reason), 201)


async def revoke(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.revoke_token(call.path["id"], by=call.who.name, reason=call.query.reason))


ROUTES = [
    Route(
        method="GET",
        path="/tokens",
        handler=tokens,
        answers=ListView[TokenView],
        summary="List tokens, without themselves",
        role="admin",
    ),
    Route(
        method="POST",
        path="/tokens",
        handler=create,
        body=TokenBody,
        answers=NewToken,
        summary="Make a token, which is shown this once",
        role="admin",
        statuses=(201,),
    ),
    Route(
        method="DELETE",
        path="/tokens/{id}",
        handler=revoke,
        query=ReasonQuery,
        answers=Acted,
        summary="Let a token be used no more",
        role="admin",
    ),
]
