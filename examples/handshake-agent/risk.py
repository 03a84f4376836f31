"""The business: scores a payment by rules. It was here before the agent, and did not change for it."""

RISKY_NETWORKS = ("198.51.100.", "203.0.113.")


def assess(payment):
    rules = []
    if payment["amount_cny"] > 10_000:
        rules.append("large_amount")
    if payment["ip_address"].startswith(RISKY_NETWORKS):
        rules.append("risky_network")
    if not payment.get("device_fingerprint"):
        rules.append("unknown_device")
    score = min(100, 5 + 30 * len(rules))
    level = "low" if score < 40 else "medium" if score < 80 else "high"
    return {"risk_score": score, "risk_level": level, "rules_triggered": rules}
