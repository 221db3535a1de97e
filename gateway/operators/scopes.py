"""What a program with an operator key may do. Each route of the management API needs one of these."""

from enum import StrEnum


class OperatorScope(StrEnum):
    """One right. Writing does not include reading."""

    TENANTS_READ = "tenants.read"
    TENANTS_WRITE = "tenants.write"
    KEYS_READ = "keys.read"
    KEYS_WRITE = "keys.write"
    LIMITS_READ = "limits.read"
    LIMITS_WRITE = "limits.write"
    USAGE_READ = "usage.read"
    AUDIT_READ = "audit.read"
    OPERATORS_WRITE = "operators.write"
