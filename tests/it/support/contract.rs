//! Contracts used by several tests.

use serde_json::{Value, json};

/// The worked example: rule-based fraud risk score, POST /api/v1/risk.
pub fn fraud_detection() -> Value {
    json!({
        "id": "fraud-detection-v1.0",
        "version": "1.0.0",
        "description": "rule-based fraud risk score",
        "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "user_id": {"type": "string", "minLength": 1},
                "ip_address": {"type": "string", "format": "ipv4"},
                "amount_cny": {"type": "number", "minimum": 0.01},
                "device_fingerprint": {"type": "string", "maxLength": 64}
            },
            "required": ["user_id", "ip_address", "amount_cny"]
        },
        "output_schema": {
            "type": "object",
            "properties": {
                "risk_score": {"type": "number", "minimum": 0, "maximum": 100},
                "risk_level": {"enum": ["low", "medium", "high"]},
                "rules_triggered": {"type": "array", "items": {"type": "string"}}
            },
            "required": ["risk_score", "risk_level"]
        },
        "constraints": {"timeout_ms": 500, "max_concurrent": 100}
    })
}

/// An input that `fraud_detection` accepts.
pub fn fraud_input() -> Value {
    json!({"user_id": "u-1", "ip_address": "203.0.113.7", "amount_cny": 120.5})
}

/// An output that `fraud_detection` accepts.
pub fn fraud_output() -> Value {
    json!({"risk_score": 12, "risk_level": "low", "rules_triggered": []})
}
